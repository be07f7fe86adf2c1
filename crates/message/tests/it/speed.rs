//! Prints how long a message takes, beside serde_json, which only checks it. Run with --release.

use std::hint::black_box;
use std::time::Instant;

use serde::de::IgnoredAny;
use tidegate_message::{JsonPointer, JsonPointers, LastEvent, XmlPaths};

/// Repetitions of each measurement.
const ROUNDS: u32 = 5000;

fn pointers(texts: &[&str]) -> JsonPointers {
    let parsed = texts.iter().map(|text| text.parse::<JsonPointer>());
    JsonPointers::new(parsed.map(|pointer| pointer.expect("a pointer"))).expect("a set")
}

/// The shortest of several runs.   ns a round
fn measure(mut round: impl FnMut()) -> u128 {
    let run = |_| {
        let start = Instant::now();
        (0..ROUNDS).for_each(|_| round());
        start.elapsed().as_nanos() / u128::from(ROUNDS)
    };
    (0..9).map(run).min().expect("there are runs")
}

fn print(name: &str, body: &str, places: &[&str]) {
    let pointers = pointers(places);
    let found = pointers.find(body.as_bytes()).expect("readable");
    assert!(found.get(0).is_some());
    let own = measure(|| {
        black_box(black_box(&pointers).find(black_box(body.as_bytes()))).expect("readable");
    });
    let serde = measure(|| {
        black_box(serde_json::from_slice::<IgnoredAny>(black_box(
            body.as_bytes(),
        )))
        .expect("valid");
    });
    println!(
        "{name}: {} bytes, {own} ns; serde_json checks it in {serde} ns",
        body.len()
    );
}

/// A chat completion with one long text in it.
fn chat(text: &str) -> String {
    let mut content = String::new();
    while content.len() < 3900 {
        content.push_str(text);
    }
    serde_json::json!({
        "model": "gpt-4o",
        "messages": [
            {"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": content},
        ],
        "max_tokens": 500,
        "stream": true,
    })
    .to_string()
}

fn small_values() -> String {
    let mut params = Vec::new();
    for number in 0.. {
        params.push(serde_json::json!({
            "id": number * 7919 % 100_000,
            "name": format!("vm-{}", number * 31 % 977),
            "on": number % 3 == 0,
            "load": f64::from(number * 37 % 1000) / 8.0,
            "tags": ["a", "prod", null],
        }));
        let body =
            serde_json::json!({"jsonrpc": "2.0", "method": "VM.set", "params": params, "id": 7})
                .to_string();
        if body.len() > 4050 {
            return body;
        }
    }
    unreachable!()
}

#[test]
#[ignore = "a measurement, for --release"]
fn time_of_a_message() {
    let of_openai = ["/model", "/max_tokens"];
    let plain = "The quick brown fox jumps over the lazy dog, and then it sleeps. ";
    print("chat, plain text", &chat(plain), &of_openai);
    let lines = "fn main() {\n    println!(\"hello\");\n}\n\nA line of \"text\" with\ttabs.\n";
    print("chat, many escapes", &chat(lines), &of_openai);
    print(
        "chat, Umlauts",
        &chat("Größenwahn überfällt mich täglich, und zwar früh. "),
        &of_openai,
    );
    print(
        "chat, Chinese",
        &chat("敏捷的棕色狐狸跳过了懒狗。"),
        &of_openai,
    );
    let of_json_rpc = ["/method", "/params/0/id"];
    let small = small_values();
    print("JSON-RPC, small values", &small, &of_json_rpc);
    let value: serde_json::Value = serde_json::from_str(&small).expect("valid");
    let pretty = serde_json::to_string_pretty(&value).expect("text");
    print("JSON-RPC, indented", &pretty, &of_json_rpc);
    print(
        "JSON-RPC, short",
        r#"{"jsonrpc":"2.0","method":"VM.start","params":["OpaqueRef:1","x",true],"id":1}"#,
        &["/method", "/params/0"],
    );
}

#[test]
#[ignore = "a measurement, for --release"]
fn time_of_an_event() {
    const EVENTS: u128 = 200;
    let event = serde_json::json!({
        "id": "chatcmpl-9fkQ2aXvT0", "object": "chat.completion.chunk", "created": 1_760_000_000,
        "model": "gpt-4o", "usage": null, "choices": [
            {"index": 0, "delta": {"content": " word"}, "logprobs": null, "finish_reason": null},
        ],
    });
    let stream = format!("data: {event}\n\n").repeat(200) + "data: [DONE]\n\n";
    let bytes = stream.len() / 200;
    for chunk_bytes in [stream.len(), bytes, 100] {
        let mut last = LastEvent::new("/usage/total_tokens".parse().expect("a pointer"), 4096);
        let time = measure(|| {
            let chunks = black_box(stream.as_bytes()).chunks(chunk_bytes);
            chunks.for_each(|chunk| last.feed(chunk));
        });
        let time = time / EVENTS;
        println!("event of {bytes} bytes in chunks of {chunk_bytes}: {time} ns");
    }
}

#[test]
#[ignore = "a measurement, for --release"]
fn time_of_a_message_in_xml() {
    let param = "<param><value><string>OpaqueRef:1b5e4c2d-90f6-4c8e</string></value></param>";
    let paths = ["methodName", "params/param/0/value"].map(|path| path.parse().expect("a path"));
    let paths = XmlPaths::new(paths).expect("a set");
    for count in [2, 50] {
        let params = param.repeat(count);
        let body = format!(
            "<?xml version='1.0'?>\n<methodCall><methodName>VM.start</methodName><params>{params}</params></methodCall>"
        );
        let time = measure(|| {
            black_box(black_box(&paths).find(black_box(body.as_bytes()))).expect("readable");
        });
        println!("XML-RPC: {} bytes, {time} ns", body.len());
    }
}
