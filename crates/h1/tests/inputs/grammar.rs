//! Messages as clients and backends write them.

use super::{Kind, Random};

const METHODS: [&str; 12] = [
    "GET", "GET", "HEAD", "POST", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "M-SEARCH",
    "CONNECT",
];

const TARGETS: [&str; 22] = [
    "/",
    "/a",
    "/a?b=c&d",
    "/smapi/Image_Query_DM/x",
    "/%41%2f..//;x=y",
    "/-._~!$&'()*+,;=:@",
    "/0123456789/0123456789?0123456789",
    "/a/b/c/d/e/f",
    "/?",
    "*",
    "*",
    "http://t/a",
    "http://u:80/?b",
    "HTTP://u?b",
    "ftp://u",
    "http://a@u/",
    "http://[::1]/a#b",
    "http://:80",
    "/a#b",
    "/a\"{}|",
    "/caf\u{e9}",
    "t:80",
];

/// Fields that every proxy passes on.
const PASSED: [&str; 18] = [
    "User-Agent: curl/8.5.0",
    "Accept: */*",
    "Accept-Encoding: gzip, deflate",
    "Content-Type: application/json",
    "Authorization: Basic dTpw",
    "X-Request-Id: 1",
    "X:",
    "X: a  b",
    "X:y ",
    "Cookie: a=b; c=d",
    "x-underscore_name: 1",
    "X-Latin: caf\u{e9}",
    "Cache-Control: no-cache",
    "Traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "Content-Encoding: chunked",
    "X-Content-Length: 5",
    "Server: a",
    "Date: Thu, 26 Nov 2026 18:00:00 GMT",
];

/// Fields that mean something to a proxy, in forms good and bad.
pub(super) const ODD: [&str; 78] = [
    "Connection: close",
    "Connection: keep-alive",
    "connection: Keep-Alive, x",
    "Connection: x, Host",
    "Connection: content-length",
    "Connection: transfer-encoding, close",
    "Connection: Upgrade, HTTP2-Settings",
    "Connection: keep-alive, \u{e9}",
    "Connection:",
    "Connection: close, close",
    "Keep-Alive: timeout=5",
    "Proxy-Connection: close",
    "Proxy-Authorization: Basic dTpw",
    "Proxy-Authenticate: Basic",
    "Upgrade: h2c",
    "Upgrade: websocket",
    "HTTP2-Settings: AAMAAABkAAQAAP__",
    "Expect: 100-continue",
    "Expect: x",
    "TE: trailers",
    "Trailer: X",
    "Host: t",
    "Host: t:80",
    "Host: [::1]:80",
    "Host:",
    "Host: a b",
    "Host: a, b",
    "Host: a/b",
    "Host: u@t",
    "Content-Length: 0",
    "Content-Length: 5",
    "Content-Length: 5, 5",
    "Content-Length: 5, 6",
    "Content-Length: +5",
    "Content-Length: -5",
    "Content-Length: 0x5",
    "Content-Length: 05",
    "Content-Length: 5 5",
    "Content-Length:",
    "Content-Length: 9999999999999999999",
    "Content-Length: 18446744073709551613",
    "Content-Length: 18446744073709551614",
    "Content-Length: 18446744073709551615",
    "Content-Length: 18446744073709551616",
    "Content-Length: 00000000000000000005",
    "Content-Length : 5",
    "Content-Length:\t5",
    "Content_Length: 5",
    "Content--Length: 5",
    "_Content-Length: 5",
    "Transfer-Encoding: chunked",
    "transfer-encoding:  CHUNKED ",
    "Transfer-Encoding: gzip, chunked",
    "Transfer-Encoding: chunked, gzip",
    "Transfer-Encoding: identity",
    "Transfer-Encoding: \u{b}chunked",
    "Transfer-Encoding: chunked;q=1",
    "Transfer-Encoding:",
    "Transfer_Encoding: chunked",
    "Transfer-Encoding: chunke",
    "Close: 1",
    " folded",
    "Connection: Upgrade",
    "Connection: keep-alive, upgrade",
    "Upgrade: websocket, h2c",
    "Upgrade: a/1.0",
    "Connection: Upgrade\r\nUpgrade: websocket",
    "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAE",
    "Expect: 100-Continue",
    "X-Forwarded-For: 10.0.0.1",
    "x-forwarded-proto: https",
    "Forwarded: for=_a",
    "Max-Forwards: 3",
    "Max-Forwards: x",
    "Authorization: NTLM abc",
    "authorization: Negotiate",
    "WWW-Authenticate: Basic realm=\"a\", Negotiate",
    "WWW-Authenticate: NTLM",
];

const STATUSES: [&str; 22] = [
    "200 OK",
    "200 OK",
    "200 OK",
    "200 Fine",
    "200 ",
    "200",
    "201 Created",
    "204 No Content",
    "206 Partial Content",
    "304 Not Modified",
    "400 Bad Request",
    "404 Not Found",
    "500 Internal Server Error",
    "503 caf\u{e9}",
    "100 Continue",
    "103 Early Hints",
    "101 Switching Protocols",
    "999 x",
    "099 x",
    "000 x",
    "199 x",
    "600 x",
];

const SIZES: [&str; 18] = [
    "1",
    "3",
    "5",
    "a",
    "A",
    "10",
    "03",
    "0005",
    "1f",
    "0",
    "00",
    "ffffffff",
    "ffffffffffffffff",
    "8000000000000000",
    "10000000000000000",
    "00000000000000000000000000000001",
    "f0000000000000003",
    "7fffffffffffffff",
];

const EXTRAS: [&str; 12] = [
    ";a", ";a=b", ";a=\"b\"", " ", "\t", " ;a", ";", "  \t;\t", "; a = b", ";\u{e9}", ";\u{7f}",
    ";a;b;c",
];

const TRAILERS: [&str; 10] = [
    "X: y",
    "X:",
    "X-Long-Name: a b\tc",
    "X : y",
    ": y",
    "X",
    " X: y",
    "Content-Length: 5",
    "Transfer-Encoding: chunked",
    "X!#$: \u{e9}",
];

/// Writes a text, of which each character is one byte.
pub(super) fn latin(text: &str, into: &mut Vec<u8>) {
    if text.is_ascii() {
        into.extend_from_slice(text.as_bytes());
    } else {
        let byte = |it: char| u8::try_from(u32::from(it)).expect("a character up to U+00FF");
        into.extend(text.chars().map(byte));
    }
}

fn line(text: &str, into: &mut Vec<u8>) {
    latin(text, into);
    into.extend_from_slice(b"\r\n");
}

/// Writes a message of this kind.
pub(crate) fn message(kind: Kind, random: &mut Random, into: &mut Vec<u8>) {
    match kind {
        Kind::Requests => request(random, into),
        Kind::Responses => response(random, into),
        Kind::Chunks => chunks(random, into),
    }
}

fn request(random: &mut Random, into: &mut Vec<u8>) {
    latin(random.pick(&METHODS), into);
    into.push(b' ');
    // The last ones are no paths.
    let targets = match random.below(12) {
        0 => &TARGETS[..],
        _ => &TARGETS[..9],
    };
    latin(random.pick(targets), into);
    match random.below(24) {
        0 => line(" HTTP/1.0", into),
        1 => line(" HTTP/1.2", into),
        _ => line(" HTTP/1.1", into),
    }
    if !random.one_in(32) {
        line("Host: t", into);
    }
    fields(random, into);
    body(random, into);
}

fn response(random: &mut Random, into: &mut Vec<u8>) {
    let version = match random.below(8) {
        0 => "HTTP/1.0 ",
        _ => "HTTP/1.1 ",
    };
    latin(version, into);
    line(random.pick(&STATUSES), into);
    fields(random, into);
    body(random, into);
}

fn fields(random: &mut Random, into: &mut Vec<u8>) {
    for _ in 0..random.below(5) {
        line(random.pick(&PASSED), into);
    }
    if random.one_in(3) {
        line(random.pick(&ODD), into);
    }
    if random.one_in(256) {
        for _ in 0..random.below(40) {
            line(random.pick(&PASSED), into);
        }
    }
}

/// The framing, the end of the head, and a body.
fn body(random: &mut Random, into: &mut Vec<u8>) {
    match random.below(4) {
        0 | 1 => line("", into),
        2 => {
            line("Content-Length: 5", into);
            line("", into);
            latin("hello", into);
        }
        _ => {
            line("Transfer-Encoding: chunked", into);
            line("", into);
            chunks(random, into);
        }
    }
}

fn chunks(random: &mut Random, into: &mut Vec<u8>) {
    for _ in 0..random.below(4) {
        let text = match random.below(3) {
            0 => random.pick(&SIZES),
            _ => random.pick(&SIZES[..4]),
        };
        latin(text, into);
        if random.one_in(8) {
            latin(random.pick(&EXTRAS), into);
        }
        line("", into);
        let size = usize::from_str_radix(text, 16).unwrap_or(0).min(31);
        into.extend(std::iter::repeat_n(b'x', size));
        line("", into);
    }
    latin("0", into);
    if random.one_in(12) {
        latin(random.pick(&EXTRAS), into);
    }
    line("", into);
    if random.one_in(8) {
        for _ in 0..random.between(1, 3) {
            line(random.pick(&TRAILERS), into);
        }
    }
    line("", into);
}
