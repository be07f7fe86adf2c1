//! The mutations of smuggler: a `Transfer-Encoding` that one parser sees and another does not,
//! beside a `Content-Length`. They are many and alike, so rules make them.

use super::cases::Case;

/// Bytes that a parser may skip, or take for white space.
fn odd_bytes() -> impl Iterator<Item = u8> + Clone {
    (0x01..=0x20).chain(0x7f..=0xff)
}

/// The lines that stand for themselves, and whether they leave one framing.
const LINES: [(&str, bool); 28] = [
    (" Transfer-Encoding: chunked", false),
    ("Transfer-Encoding:\tchunked", false),
    ("Transfer-Encoding\t:\tchunked", false),
    ("Transfer Encoding: chunked", false),
    ("Transfer_Encoding: chunked", false),
    ("Transfer Encoding:chunked", false),
    ("Transfer-Encoding : chunked", false),
    ("Transfer-Encoding:  chunked", false),
    ("Transfer-Encoding:\u{b}chunked", false),
    ("Transfer-Encoding: chunked, cow", false),
    ("Transfer-Encoding: cow, chunked", false),
    // Says something of the content, and nothing of its framing.
    ("Content-Encoding: chunked", true),
    ("Transfer-Encoding:\n chunked", false),
    ("Transfer-Encoding: \"chunked\"", false),
    ("Transfer-Encoding: 'chunked'", false),
    ("Transfer-Encoding: chunk", false),
    ("TrAnSFer-EnCODinG: cHuNkeD", false),
    ("TRANSFER-ENCODING: CHUNKED", false),
    ("Transfer-Encoding: chunked\r", false),
    ("Transfer-Encoding: chunked\t", false),
    (
        "Transfer-Encoding: cow\r\nTransfer-Encoding: chunked",
        false,
    ),
    ("Transfer\r-Encoding: chunked", false),
    ("Transfer-Encoding: cow chunked bar", false),
    ("Transfer-Encoding:\u{ff}chunked", false),
    ("Transfer-Encoding: ch\u{96}nked", false),
    ("Transf\u{82}r-Encoding: chunked", false),
    ("X:X\rTransfer-Encoding: chunked", false),
    ("X:X\nTransfer-Encoding: chunked", false),
];

/// Lines with an odd byte at each `…`.
const ONE_BYTE: [&str; 10] = [
    "Transfer-Encoding:…chunked",
    "Transfer-Encoding…: chunked",
    "…Transfer-Encoding: chunked",
    "Transfer-Encoding: chunked…",
    "X: X…Transfer-Encoding: chunked",
    "Transfer-Encoding: chunked…X: X",
    "X: X\r…Transfer-Encoding: chunked",
    "X: X…\nTransfer-Encoding: chunked",
    "Transfer-Encoding: chunked\r…X: X",
    "Transfer-Encoding: chunked…\nX: X",
];

/// Requests with the byte in two places.
const TWO_BYTES: [&str; 6] = [
    "…Transfer-Encoding…: chunked",
    "…Transfer-Encoding:…chunked",
    "…Transfer-Encoding: chunked…",
    "Transfer-Encoding…:…chunked",
    "Transfer-Encoding…: chunked…",
    "Transfer-Encoding:…chunked…",
];

/// Every mutation, as a request whose two framings end in different places.
pub(super) fn all() -> Vec<Case> {
    let lines = LINES.iter().enumerate().map(|(number, &(line, is_one))| {
        let name = format!("line {}", number + 1);
        case(name, line, is_one)
    });
    let forms = ONE_BYTE.iter().chain(&TWO_BYTES).enumerate();
    let odd = forms.flat_map(|(number, form)| {
        odd_bytes().map(move |byte| {
            let line = form.replace('…', &char::from(byte).to_string());
            // Here the byte and all behind it is the value of X.
            let is_value = form.starts_with("X: X…T") && (b"\t ".contains(&byte) || byte >= 0x80);
            case(
                format!("form {} with {byte:02x}", number + 1),
                &line,
                is_value,
            )
        })
    });
    lines.chain(odd).collect()
}

fn case(name: String, line: &str, has_one_framing: bool) -> Case {
    let body = "0\r\n\r\n";
    let bytes = format!("POST / HTTP/1.1\r\n{line}\r\nHost: t\r\nContent-Length: 5\r\n\r\n{body}");
    let (backend, client) = if has_one_framing {
        (vec!["POST / length 5".to_owned()], "answered, open")
    } else {
        (Vec::new(), "refused, closed")
    };
    Case {
        name,
        section: "RFC 9112, 6.1".to_owned(),
        bytes,
        repeat: None,
        backend,
        client: client.to_owned(),
        why: None,
    }
}
