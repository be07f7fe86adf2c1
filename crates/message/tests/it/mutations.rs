//! Messages that are changed at random, read by both readers.

use std::env;

use crate::oracle::BothReaders;

/// Bodies of every test run, and of the long one unless `TIDEGATE_INPUTS` says otherwise.
const BODIES: u64 = 300_000;
const BODIES_OF_LONG_RUN: u64 = 10_000_000;

const POINTERS: [&[&str]; 4] = [
    &["/method", "/params/name", "/params/0"],
    &["/model", "/max_tokens", "/messages/0/role", ""],
    &["/a/b/c", "/a/b/d", "/a/0/1", "/a~1b", "/a//x"],
    &["/usage/total_tokens", "/\\n", "/\\u0061"],
];

pub(crate) const SEEDS: &[&str] = &[
    r#"{"jsonrpc":"2.0","method":"VM.start","params":["OpaqueRef:1",true,null],"id":1}"#,
    r#"{ "method" : "tools/call" , "params" : { "name" : "search" , "arguments" : { "q" : [ ] } } }"#,
    r#"{"params":{"name":"a","Names":1},"id":null,"method":"b"}"#,
    r#"[{"method":"a","params":[1]},{"method":"b","params":["x"]}]"#,
    r#"[{"method":"a"}]"#,
    r#"{"model":"gpt","messages":[{"role":"user","content":"H\u00e9llo\n\"x\""}],"max_tokens":1e2}"#,
    r#"{"usage":{"total_tokens":42.0,"x":[{},[],{"y":-0.5E+3}]}}"#,
    r#"{"a":{"b":{"c":"\ud83d\ude00","d":-12},"x":"y"},"a/b":1}"#,
    r#"{"a":[[1,"two"],{"b":3}],"":{"x":0}}"#,
    r#"{"a":{"":{"x":true}},"b":"long enough that words of eight bytes are read, and then some more"}"#,
    "{\r\n\t\"method\": \"x\",\n\t\"params\": {\"name\": \"y\"}\n}\n",
    "{\"method\":\"é敏\",\"m\u{131}ethod\":\"\u{212a}\"}",
    "42",
    "\"text\"",
];

/// Pieces that are put into a body.
pub(crate) const PIECES: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "\\",
    " ",
    "\n",
    "0",
    "1",
    "-",
    ".",
    "e",
    "E",
    "+",
    "true",
    "false",
    "null",
    "NaN",
    "\"method\":",
    "\"Method\":",
    "\"METHOD\":1,",
    "\"method\":\"z\",",
    "\"\\u006dethod\":\"y\",",
    "\"params\":",
    "\"param\u{17f}\":",
    "\"name\":",
    "\"max_to\u{212a}ens\":1,",
    "\"model\":",
    "\"MODEL\":2,",
    "\"id\":",
    "\"\u{130}d\":",
    "\"a\":",
    "\"A\":",
    "\"b\":",
    "\"0\":",
    "\"\\n\":",
    "\"\\\\n\":",
    "\"\\u0061\":",
    "\"\\\\u0061\":",
    "\"\":",
    "\\u0000",
    "\\u00e9",
    "\\ud83d",
    "\\ude00",
    "\\ud83d\\ude00",
    "\\n",
    "\\\"",
    "\\\\",
    "\\/",
    "\\x",
    "\u{feff}",
    "\u{0}",
    "\u{1}",
    "\u{7f}",
    "\u{2028}",
    "é",
    "敏",
    "1e400",
    "9007199254740993",
    "18446744073709551616",
    "0.0",
    "-0",
    "00",
    "{\"a\":{\"a\":",
    "[[[[[[[[[[[[[[[[[[[[[[",
    "]]]]]]]]]]]]]]]]]]]]]]",
    "//",
    "/*",
    "'",
    "NULL",
    "\u{b}",
    "\t",
    "abcdefgh",
    "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz",
];

/// The random numbers of a seed (splitmix64).
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below a bound.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound).expect("a bound fits");
        usize::try_from(self.next() % bound).expect("it is below a usize")
    }

    fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len())]
    }
}

/// Makes a body from a seed, changed at one to three places.
pub(crate) fn make(body: &mut Vec<u8>, seeds: &[&str], pieces: &[&str], dice: &mut Dice) {
    body.clear();
    body.extend_from_slice(dice.pick(seeds).as_bytes());
    for _ in 0..=dice.below(3) {
        mutate(body, seeds, pieces, dice);
    }
}

/// Changes a body at one place.
fn mutate(body: &mut Vec<u8>, seeds: &[&str], pieces: &[&str], dice: &mut Dice) {
    let at = dice.below(body.len() + 1);
    let rest = body.len() - at;
    let span = at..at + dice.below(rest.min(24) + 1);
    match dice.below(10) {
        0 | 1 => {
            let piece = dice.pick(pieces).bytes();
            body.splice(at..at, piece);
        }
        2 | 3 => {
            // Between two tokens.
            let ends = |byte: &u8| b">,:{}[]".contains(byte);
            let token = body[at..].iter().position(ends);
            let at = token.map_or(at, |token| at + token + 1);
            body.splice(at..at, dice.pick(pieces).bytes());
        }
        4 => {
            body.splice(span, dice.pick(pieces).bytes());
        }
        5 => {
            body.drain(span);
        }
        6 => {
            let copied = body[span].to_vec();
            let to = dice.below(body.len() + 1);
            body.splice(to..to, copied);
        }
        7 if rest > 0 => body[at] ^= 1 << dice.below(8),
        8 if rest > 0 => body[at] ^= 0x20,
        _ => {
            let seed = dice.pick(seeds).bytes();
            body.splice(at..at, seed);
        }
    }
}

/// Compares both readers over bodies. Returns how many were readable.
fn compare(seed: u64, bodies: u64) -> u64 {
    let sets = POINTERS.map(BothReaders::new);
    let mut dice = Dice(seed);
    let (mut body, mut readable, mut findings) = (Vec::new(), 0, 0);
    for number in 0..bodies {
        make(&mut body, SEEDS, PIECES, &mut dice);
        match sets[dice.below(sets.len())].compare(&body) {
            Ok(is_readable) => readable += u64::from(is_readable),
            Err(reason) => {
                findings += 1;
                let shown = String::from_utf8_lossy(&body);
                println!("seed {seed}, body {number}: {reason}: {shown:?}");
                assert!(findings < 20, "too many disagreements");
            }
        }
    }
    println!("seed {seed}: {bodies} bodies, {readable} readable, {findings} disagreements");
    assert_eq!(findings, 0);
    readable
}

fn number_of(variable: &str, otherwise: u64) -> u64 {
    let given = env::var(variable).ok();
    given.map_or(otherwise, |text| text.parse().expect("a number"))
}

#[test]
fn both_readers_agree_on_mutated_bodies() {
    let readable = compare(1, BODIES);
    assert!(readable > BODIES / 20, "the bodies are mutated too much");
}

#[test]
#[ignore = "minutes, for --release"]
fn the_long_run() {
    let seed = number_of("TIDEGATE_SEED", 2);
    compare(seed, number_of("TIDEGATE_INPUTS", BODIES_OF_LONG_RUN));
}
