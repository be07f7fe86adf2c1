//! A change of a message, of the kinds that parsers disagree about.

use super::{Kind, Random, Seeds, grammar};

/// Bytes that some parser treats in its own way.
const BYTES: &[u8] = b"\0\t\n\r\n\r \x0b\x0c\x1f\"#%&'()+,-./0123459:;<=>?@AFGZ[\\]_afgxz{|}~\x7f\x80\x85\xa0\xe9\xff";

/// Replacements for a line's end.
const ENDS: [&[u8]; 7] = [b"\n", b"\r", b"", b"\n\r", b"\r\r\n", b"\r\n\r\n", b"\r\n "];

/// White space around a colon.
const SPACES: [&[u8]; 6] = [b" ", b"\t", b"  ", b" \t", b"\x0b", b"\xa0"];

/// Numbers in forms good and bad.
const NUMBERS: [&str; 16] = [
    "0",
    "1",
    "4",
    "6",
    "+5",
    "-1",
    "0x5",
    "05",
    "5,5",
    "5 ",
    "5e0",
    "1_0",
    "18446744073709551615",
    "18446744073709551616",
    "99999999999999999999",
    "4294967296",
];

/// Additions behind a value.
const BEHIND: [&str; 9] = [
    ",",
    ", chunked",
    ", 5",
    ";q=1",
    " ",
    "\t",
    "\"",
    "\u{85}",
    ", close",
];

/// Changes the message once, if it has what this change is about.
pub(super) fn once(kind: Kind, seeds: &Seeds, random: &mut Random, bytes: &mut Vec<u8>) {
    match random.below(20) {
        0 | 1 => {
            let byte = any_byte(random);
            if let Some(at) = place(random, bytes) {
                bytes[at] = byte;
            }
        }
        2 => {
            let byte = any_byte(random);
            let at = random.below(bytes.len() as u64 + 1) as usize;
            bytes.insert(at, byte);
        }
        3 => {
            if let Some(at) = place(random, bytes) {
                bytes.remove(at);
            }
        }
        4 => {
            if let Some(at) = place(random, bytes) {
                let times = random.between(1, 3) as usize;
                let byte = bytes[at];
                bytes.splice(at..at, std::iter::repeat_n(byte, times));
            }
        }
        5 => swap_lines(random, bytes),
        6 => {
            let (from, to) = line(random, bytes);
            let copy = bytes[from..to].to_vec();
            let (at, _) = line(random, bytes);
            bytes.splice(at..at, copy);
        }
        7 => {
            let (from, to) = line(random, bytes);
            bytes.drain(from..to);
        }
        8 | 9 => {
            let mut field = Vec::new();
            grammar::latin(random.pick(&grammar::ODD), &mut field);
            field.extend_from_slice(b"\r\n");
            let (_, at) = line(random, bytes);
            bytes.splice(at..at, field);
        }
        10 => {
            if let Some(other) = seeds.any(kind, random) {
                let (from, to) = line(random, other);
                let (_, at) = line(random, bytes);
                bytes.splice(at..at, other[from..to].iter().copied());
            }
        }
        11 => {
            let (_, end) = line(random, bytes);
            if bytes[..end].ends_with(b"\r\n") {
                bytes.splice(end - 2..end, random.pick(&ENDS).iter().copied());
            }
        }
        12 | 13 => {
            let space = random.pick(&SPACES);
            let (from, to) = line(random, bytes);
            if let Some(colon) = memchr::memchr(b':', &bytes[from..to]) {
                let at = from + colon + random.below(2) as usize;
                bytes.splice(at..at, space.iter().copied());
            }
        }
        14 => number(random, bytes),
        15 => name(random, bytes),
        16 => {
            let at = random.below(bytes.len() as u64 + 1) as usize;
            bytes.truncate(at);
        }
        17 => grammar::message(kind, random, bytes),
        18 => {
            let mut text = Vec::new();
            grammar::latin(random.pick(&BEHIND), &mut text);
            let (_, end) = line(random, bytes);
            if bytes[..end].ends_with(b"\r\n") {
                bytes.splice(end - 2..end - 2, text);
            }
        }
        _ => {
            // A part of the message again, at another place.
            if let (Some(from), Some(at)) = (place(random, bytes), place(random, bytes)) {
                let to = (from + random.below(24) as usize).min(bytes.len());
                let part = bytes[from..to].to_vec();
                bytes.splice(at..at, part);
            }
        }
    }
}

fn any_byte(random: &mut Random) -> u8 {
    match random.below(4) {
        0 => random.next() as u8,
        _ => random.pick(BYTES),
    }
}

fn place(random: &mut Random, bytes: &[u8]) -> Option<usize> {
    (!bytes.is_empty()).then(|| random.below(bytes.len() as u64) as usize)
}

/// Where a line begins and ends, with its LF.
fn line(random: &mut Random, bytes: &[u8]) -> (usize, usize) {
    let at = random.below(bytes.len() as u64 + 1) as usize;
    let from = memchr::memrchr(b'\n', &bytes[..at]).map_or(0, |lf| lf + 1);
    let to = memchr::memchr(b'\n', &bytes[at..]).map_or(bytes.len(), |lf| at + lf + 1);
    (from, to)
}

fn swap_lines(random: &mut Random, bytes: &mut Vec<u8>) {
    let (from, to) = line(random, bytes);
    let taken: Vec<u8> = bytes.drain(from..to).collect();
    let (at, _) = line(random, bytes);
    bytes.splice(at..at, taken);
}

/// Writes another number where one is.
fn number(random: &mut Random, bytes: &mut Vec<u8>) {
    let Some(at) = place(random, bytes) else {
        return;
    };
    let Some(from) = bytes[at..].iter().position(u8::is_ascii_hexdigit) else {
        return;
    };
    let from = at + from;
    let digits = bytes[from..]
        .iter()
        .position(|it| !it.is_ascii_digit())
        .map_or(bytes.len(), |length| from + length);
    let number = random.pick(&NUMBERS);
    bytes.splice(from..digits, number.bytes());
}

/// Writes the name of a line in another case, or with another sign.
fn name(random: &mut Random, bytes: &mut [u8]) {
    let (from, to) = line(random, bytes);
    let end = memchr::memchr(b':', &bytes[from..to]).map_or(to, |colon| from + colon);
    let name = &mut bytes[from..end];
    match random.below(4) {
        0 => name.make_ascii_uppercase(),
        1 => name.make_ascii_lowercase(),
        other => {
            let sign = if other == 2 { b'_' } else { b'.' };
            for byte in name.iter_mut().filter(|byte| **byte == b'-') {
                *byte = sign;
            }
        }
    }
}
