//! Bodies that parsers read differently (`tests/evasions.json`): each is unreadable, or is read as all of them do.
//!
//! `tests/peers` has the programs that the table was recorded with: Python 3.11, Node 20, Go 1.19, Jackson 2.14 and
//! Gson 2.10 on Java 17. Two of them run with every test, because their parsers change.

use std::io::{ErrorKind, Write};
use std::process::{Command, Stdio};
use std::thread;

use serde_json::{Value, json};
use tidegate_message::{JsonPointers, JsonValue, XmlPaths};

use crate::mutations::{self, Dice};

/// Mutated bodies that a parser reads in every test run, if the crate can read them.
const BODIES: usize = 40_000;

const XML_SEEDS: &[&str] = &[
    "<?xml version='1.0'?>\n<methodCall><methodName>VM.start</methodName><params>\n<param><value><string>x</string>\
        </value></param>\n<param><value>y</value></param></params></methodCall>",
    "<methodCall><params><param><value>x</value></param></params><methodName>a&amp;b</methodName></methodCall>",
    "<methodCall><methodName>a</methodName><params><param><value><struct><member><name>n</name><value>z</value>\
        </member></struct></value></param></params></methodCall>",
    "<methodCall><methodName>a</methodName></methodCall>",
];
const XML_PIECES: &[&str] = &[
    "<",
    ">",
    "/",
    "</",
    "/>",
    "&",
    ";",
    "'",
    "\"",
    " ",
    "\n",
    "\r",
    "x",
    "é",
    "&lt;",
    "&#x41;",
    "&#0;",
    "&nbsp;",
    "<!--",
    "-->",
    "<!-- x -->",
    "<![CDATA[",
    "]]>",
    "<![CDATA[x]]>",
    "<?x y?>",
    "<!DOCTYPE a>",
    "\u{feff}",
    "\u{1}",
    "<methodName>b</methodName>",
    "<p:methodName>c</p:methodName>",
    "<MethodName>d</MethodName>",
    "<methodName/>",
    "<params>",
    "</params>",
    "<params/>",
    "<param>",
    "</param>",
    "<param/>",
    "<value>",
    "</value>",
    "<value/>",
    "<value>v</value>",
    "<param><value>w</value></param>",
    "<string>",
    "</string>",
    "<string>s</string>",
    "<nil/>",
    "<array><data>",
    "</data></array>",
    "<struct>",
    "</struct>",
    "<x>",
    "</x>",
    "<x a='1'>",
    "<p:value>q</p:value>",
];

/// Parsers whose results are in the table. A result is `false` if the parser refuses the body.
const PARSERS: [&str; 6] = ["python", "node", "go", "go_stream", "jackson", "gson"];

/// The finding of a reader at the place of a row.
#[derive(Clone, Debug, PartialEq)]
enum Reading {
    /// The reader refuses the body, for this reason if it gives one.
    Refused(Option<String>),
    Text(String),
    Number(f64),
    /// A number that the crate leaves to the caller as text.
    AnyNumber,
    /// Neither a text nor a number.
    Absent,
}

impl Reading {
    fn of(value: &Value) -> Self {
        match value {
            Value::Bool(false) => Self::Refused(None),
            Value::String(text) => Self::Text(text.clone()),
            Value::Number(number) => number.as_f64().map_or(Self::AnyNumber, Self::Number),
            _ => Self::Absent,
        }
    }

    /// Whether the crate keeps its promise beside this parser.
    fn is_kept_beside(&self, parser: &Self) -> bool {
        match (self, parser) {
            (Self::Refused(_), _) | (_, Self::Refused(_)) => true,
            (Self::AnyNumber, Self::Number(_)) => true,
            _ => self == parser,
        }
    }
}

fn rows() -> Vec<Value> {
    serde_json::from_str(include_str!("../evasions.json")).expect("the table is JSON")
}

fn body(row: &Value) -> Vec<u8> {
    let Some(hex) = row["hex"].as_str() else {
        return row["body"].as_str().expect("a row has a body").into();
    };
    let pairs = hex.as_bytes().chunks(2);
    let bytes = pairs.map(|pair| {
        let digits = str::from_utf8(pair).expect("hex is ASCII");
        u8::from_str_radix(digits, 16).expect("hex digits")
    });
    bytes.collect()
}

fn place(row: &Value) -> &str {
    row["place"].as_str().expect("a row has a place")
}

/// Reads a row with the crate.
fn own(row: &Value) -> Reading {
    let body = body(row);
    if row["kind"] == "xml" {
        let paths = XmlPaths::new([place(row).parse().expect("a path")]).expect("a set");
        return match paths.find(&body) {
            Ok(found) => match found.get(0).and_then(|text| text.as_str()) {
                Some(text) => Reading::Text(text.to_owned()),
                None => Reading::Absent,
            },
            Err(reason) => Reading::Refused(Some(reason.to_string())),
        };
    }
    let pointers = JsonPointers::new([place(row).parse().expect("a pointer")]).expect("a set");
    match pointers.find(&body) {
        Ok(found) => match found.get(0) {
            Some(JsonValue::String(text)) => Reading::Text(text.clone().into_owned()),
            Some(JsonValue::Number(number)) => match number.as_u64() {
                Some(number) => Reading::Number(number as f64),
                None => Reading::AnyNumber,
            },
            _ => Reading::Absent,
        },
        Err(reason) => Reading::Refused(Some(reason.to_string())),
    }
}

fn check(row: &Value, parser: &str, reading: &Reading) {
    let own = own(row);
    let about = &row["about"];
    let kept = own.is_kept_beside(reading);
    assert!(
        kept,
        "{about}: {parser} reads {reading:?}, and the crate {own:?}"
    );
}

#[test]
fn no_recorded_parser_reads_another_function() {
    for row in rows() {
        for parser in PARSERS {
            if let Some(value) = row.get(parser) {
                check(&row, parser, &Reading::of(value));
            }
        }
    }
}

#[test]
fn each_row_is_read_or_refused_as_the_table_says() {
    let mut wrong = Vec::new();
    for row in rows() {
        let expected = match row.get("unreadable") {
            Some(reason) => Reading::Refused(reason.as_str().map(str::to_owned)),
            None => Reading::of(&row["tidegate"]),
        };
        let own = own(&row);
        if own != expected && own != Reading::AnyNumber {
            let own = match own {
                Reading::Refused(reason) => json!({"unreadable": reason}),
                Reading::Text(text) => json!({"tidegate": text}),
                Reading::Number(number) => json!({"tidegate": number}),
                Reading::AnyNumber | Reading::Absent => json!({"tidegate": null}),
            };
            wrong.push(json!([row["kind"], row["about"], own]).to_string());
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Asks a program of `tests/peers` about the rows of some kinds. `None` if it is not on this machine.
fn ask(program: &str, peer: &str, rows: &[Value]) -> Option<Vec<Value>> {
    let path = format!("{}/tests/peers/{peer}", env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(program);
    command.arg(path).env("PYTHONDONTWRITEBYTECODE", "1");
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) if error.kind() == ErrorKind::NotFound => return None,
        Err(error) => panic!("{program} cannot be started: {error}"),
    };
    let mut questions = String::new();
    for row in rows {
        let hex: String = body(row).iter().map(|byte| format!("{byte:02x}")).collect();
        let question = json!({"kind": row["kind"], "place": row["place"], "hex": hex});
        questions.push_str(&format!("{question}\n"));
    }
    let mut stdin = child.stdin.take().expect("it is piped");
    let writer = thread::spawn(move || stdin.write_all(questions.as_bytes()));
    let output = child.wait_with_output().expect("the peer runs");
    writer.join().expect("no panic").expect("the peer reads");
    assert!(output.status.success(), "{peer} failed");
    let text = String::from_utf8(output.stdout).expect("the answers are text");
    let answers = text.split_terminator('\n').map(serde_json::from_str);
    Some(answers.map(|answer| answer.expect("JSON")).collect())
}

fn check_with(program: &str, peer: &str, rows: &[Value]) -> bool {
    let Some(answers) = ask(program, peer, rows) else {
        return false;
    };
    assert_eq!(answers.len(), rows.len());
    for (row, answer) in rows.iter().zip(&answers) {
        check(row, program, &Reading::of(answer));
    }
    true
}

#[test]
fn python_reads_no_other_function() {
    assert!(
        check_with("python3", "peer.py", &rows()),
        "there is no python3"
    );
}

#[test]
fn node_reads_no_other_function() {
    let rows = rows().into_iter().filter(|row| row["kind"] == "json");
    if !check_with("node", "peer.js", &rows.collect::<Vec<_>>()) {
        println!("there is no node");
    }
}

/// Mutated bodies that the crate can read, as rows.
fn readable(kind: &str, places: &[&str], seeds: &[&str], pieces: &[&str]) -> Vec<Value> {
    let (mut dice, mut body, mut rows) = (Dice(3), Vec::new(), Vec::new());
    for _ in 0..BODIES {
        mutations::make(&mut body, seeds, pieces, &mut dice);
        let place = places[dice.below(places.len())];
        let Ok(text) = str::from_utf8(&body) else {
            continue;
        };
        let row = json!({"about": text, "kind": kind, "place": place, "body": text});
        if !matches!(own(&row), Reading::Refused(_)) {
            rows.push(row);
        }
    }
    println!("{} of {BODIES} bodies are readable", rows.len());
    assert!(rows.len() > BODIES / 50, "the bodies are mutated too much");
    rows
}

fn readable_json() -> Vec<Value> {
    let places = [
        "/method",
        "/params/name",
        "/params/0",
        "/max_tokens",
        "/a/b/c",
    ];
    readable("json", &places, mutations::SEEDS, mutations::PIECES)
}

#[test]
fn python_reads_no_other_value_in_mutated_messages() {
    let places = ["methodName", "params/param/0/value", "params/param/1/value"];
    let xml = readable("xml", &places, XML_SEEDS, XML_PIECES);
    for rows in [readable_json(), xml] {
        assert!(
            check_with("python3", "peer.py", &rows),
            "there is no python3"
        );
    }
}

#[test]
fn node_reads_no_other_value_in_mutated_messages() {
    if !check_with("node", "peer.js", &readable_json()) {
        println!("there is no node");
    }
}
