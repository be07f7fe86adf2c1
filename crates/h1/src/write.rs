//! First lines, fields and framings, as they are sent.

use crate::fields::HeadField;

/// A body up to this size is best written from the same buffer as its head: to copy it costs less than a list of two
/// buffers.   bytes
pub const ONE_BUFFER: usize = 2 * 1024;

/// A field with this name and value.
pub fn field(name: &[u8], value: &[u8], into: &mut Vec<u8>) {
    into.extend_from_slice(name);
    into.extend_from_slice(b": ");
    into.extend_from_slice(value);
    into.extend_from_slice(b"\r\n");
}

/// Copies fields of a head. Lines that stand side by side in it, exactly as they are written here, are copied
/// together.
pub fn fields<'a>(
    head: &[u8],
    fields: impl IntoIterator<Item = &'a HeadField>,
    into: &mut Vec<u8>,
) {
    let mut together = 0..0;
    for each in fields {
        let begin = each.name.at();
        if let Some(end) = end_if_plain(head, each) {
            if together.end == begin {
                together.end = end;
            } else {
                into.extend_from_slice(&head[together]);
                together = begin..end;
            }
        } else {
            into.extend_from_slice(&head[together]);
            together = 0..0;
            field(each.name.of(head), each.value.of(head), into);
        }
    }
    into.extend_from_slice(&head[together]);
}

/// Where the line of a field ends, if the head has it exactly as it would be written.
fn end_if_plain(head: &[u8], field: &HeadField) -> Option<usize> {
    let (colon, end) = (field.name.end(), field.value.end());
    let is_plain = field.value.at() == colon + 2
        && head.get(colon..colon + 2) == Some(b": ")
        && head.get(end..end + 2) == Some(b"\r\n");
    is_plain.then_some(end + 2)
}

/// The first line of a request. A target without a path, as a URI may be, is that of the root.
pub fn request_line(method: &[u8], target: &[u8], into: &mut Vec<u8>) {
    into.extend_from_slice(method);
    into.push(b' ');
    if matches!(target.first(), None | Some(b'?')) {
        into.push(b'/');
    }
    into.extend_from_slice(target);
    into.extend_from_slice(b" HTTP/1.1\r\n");
}

/// The first line of a response; `status` has three digits.
pub fn status_line(status: u16, reason: &[u8], into: &mut Vec<u8>) {
    into.extend_from_slice(b"HTTP/1.1 ");
    number(u64::from(status), into);
    into.push(b' ');
    into.extend_from_slice(reason);
    into.extend_from_slice(b"\r\n");
}

/// The length of a body.
pub fn content_length(length: u64, into: &mut Vec<u8>) {
    into.extend_from_slice(b"content-length: ");
    number(length, into);
    into.extend_from_slice(b"\r\n");
}

/// The other framing.
pub fn chunked(into: &mut Vec<u8>) {
    into.extend_from_slice(b"transfer-encoding: chunked\r\n");
}

/// The lines that ask for another protocol, or agree to it. They replace every other Connection.
pub fn upgrade(protocol: &[u8], into: &mut Vec<u8>) {
    into.extend_from_slice(b"connection: upgrade\r\n");
    field(b"upgrade", protocol, into);
}

/// The head that lets a client send the body for which it waits.
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// The line before the data of a chunk; CRLF follows them.
pub fn chunk_size(size: usize, into: &mut Vec<u8>) {
    let digits = (usize::BITS - size.leading_zeros()).div_ceil(4).max(1);
    for at in (0..digits).rev() {
        let digit = size >> (4 * at) & 15;
        into.push(b"0123456789abcdef"[digit]);
    }
    into.extend_from_slice(b"\r\n");
}

/// The end of a chunked body.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// A number in decimal digits.
pub fn number(number: u64, into: &mut Vec<u8>) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    let mut left = number;
    loop {
        at -= 1;
        digits[at] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    into.extend_from_slice(&digits[at..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut bytes = Vec::new();
        write(&mut bytes);
        String::from_utf8(bytes).expect("text")
    }

    #[test]
    fn numbers_are_written_as_everywhere() {
        for number in [0, 1, 9, 10, 15, 16, 255, 256, 99_999, u64::MAX] {
            assert_eq!(
                written(|into| super::number(number, into)),
                number.to_string()
            );
            let size = usize::try_from(number).expect("64 bits");
            assert_eq!(
                written(|into| chunk_size(size, into)),
                format!("{size:x}\r\n")
            );
        }
    }

    #[test]
    fn fields_are_written_one_by_one_or_together_with_the_same_bytes() {
        let head = b"GET / HTTP/1.1\r\na: 1\r\nb:2\r\nc: 3\r\nd: 4\r\ne:\t5\r\nf: 6 \r\ng: \r\nh: 8\ni: 9\r\n\r\n";
        let at = |line: &str| {
            let mut lines = head.windows(line.len());
            lines
                .position(|it| it == line.as_bytes())
                .expect("it is there")
        };
        let field = |line: &str, value: usize, length: usize| HeadField {
            name: crate::ByteSpan::new(at(line), 1),
            value: crate::ByteSpan::new(at(line) + value, length),
        };
        let all = [
            field("a: 1", 3, 1),
            field("b:2", 2, 1),
            field("c: 3", 3, 1),
            field("d: 4", 3, 1),
            field("e:\t5", 3, 1),
            field("f: 6", 3, 1),
            field("g: ", 3, 0),
            field("h: 8", 3, 1),
            field("i: 9", 3, 1),
        ];
        // Any of them may be left out, and they may change places.
        for chosen in 0..1 << all.len() {
            let mut some: Vec<HeadField> = (0..all.len())
                .filter(|at| chosen >> at & 1 == 1)
                .map(|at| all[at])
                .collect();
            for _ in 0..2 {
                let together = written(|into| fields(head, &some, into));
                let alone = written(|into| {
                    for each in &some {
                        super::field(each.name.of(head), each.value.of(head), into);
                    }
                });
                assert_eq!(together, alone);
                some.reverse();
            }
        }
    }

    #[test]
    fn lines_are_written_as_the_standard_says() {
        let lines = written(|into| {
            request_line(b"GET", b"/a", into);
            status_line(200, b"OK", into);
            status_line(599, b"", into);
            content_length(12, into);
            chunked(into);
            field(b"X", b"", into);
            upgrade(b"websocket", into);
            request_line(b"GET", b"", into);
            request_line(b"GET", b"?b", into);
            request_line(b"OPTIONS", b"*", into);
        });
        let expected = "GET /a HTTP/1.1\r\nHTTP/1.1 200 OK\r\nHTTP/1.1 599 \r\n\
            content-length: 12\r\ntransfer-encoding: chunked\r\nX: \r\n\
            connection: upgrade\r\nupgrade: websocket\r\n\
            GET / HTTP/1.1\r\nGET /?b HTTP/1.1\r\nOPTIONS * HTTP/1.1\r\n";
        assert_eq!(lines, expected);
    }
}
