//! Events of streams, at every split.

use tidegate_message::{LastEvent, SseReader};

/// The data of each event, fed in chunks that end at these places.
fn events(stream: &[u8], ends: &[usize], event_bytes_max: usize) -> (Vec<String>, u64) {
    let mut reader = SseReader::new(event_bytes_max);
    let (mut found, mut from) = (Vec::new(), 0);
    for end in ends.iter().copied().chain([stream.len()]) {
        reader.feed(&stream[from..end], |data| {
            found.push(String::from_utf8_lossy(data).into_owned());
        });
        from = end;
    }
    (found, reader.passed_over())
}

/// Feeds a stream whole, in two chunks at every split, and byte by byte.
fn check(stream: &str, event_bytes_max: usize, expected: &[&str], passed_over: u64) {
    let stream = stream.as_bytes();
    let each: Vec<usize> = (0..stream.len()).collect();
    let splits = (0..=stream.len()).map(|end| vec![end]);
    for ends in splits.chain([each]) {
        let (found, too_large) = events(stream, &ends, event_bytes_max);
        let shown = String::from_utf8_lossy(stream);
        assert_eq!(found, expected, "{shown:?} at {ends:?}");
        assert_eq!(too_large, passed_over, "{shown:?} at {ends:?}");
    }
}

#[test]
fn an_event_is_its_lines_of_data() {
    check("data: a\n\ndata:b\n\n", 99, &["a", "b"], 0);
    check(
        "data: a\r\rdata: b\r\n\r\ndata: c\n\r\n",
        99,
        &["a", "b", "c"],
        0,
    );
    check(
        ": hello\nevent: x\ndata: a\nid: 1\ndata\ndata:  b\n\n",
        99,
        &["a\n\n b"],
        0,
    );
    check("\u{feff}data: a\n\n", 99, &["a"], 0);
    check("data\n\nevent: x\n\n\n\n", 99, &[""], 0);
    check("data : a\n\nDATA: b\n\ndatax: c\n\n", 99, &[], 0);
}

#[test]
fn an_event_without_its_end_is_not_handed_out() {
    check("data: a\n\ndata: b\n", 99, &["a"], 0);
    check("data: a", 99, &[], 0);
}

#[test]
fn an_event_that_is_too_large_is_passed_over() {
    check(
        "data: 12345\n\ndata: 123456\n\ndata: 1\n\n",
        5,
        &["12345", "1"],
        1,
    );
    check(
        "data: 12\ndata: 34\n\ndata: 12\ndata: 345\n\n",
        5,
        &["12\n34"],
        1,
    );
    check(
        "data:12345\n\n: a comment may be long\ndata: 2\n\n",
        5,
        &["12345", "2"],
        0,
    );
    check("data: 1234567890123456789012345\ndata: 1\n\n", 5, &[], 1);
}

#[test]
fn memory_is_bounded_by_the_size_of_an_event() {
    let mut reader = SseReader::new(1000);
    for _ in 0..1000 {
        reader.feed(&[b'x'; 10_000], |_| panic!("no event ends"));
    }
    reader.feed(b"\ndata: a\n\n", |data| assert_eq!(data, b"a"));
}

#[test]
fn the_last_number_of_a_stream_stays() {
    let mut last = LastEvent::new("/usage/total_tokens".parse().expect("a pointer"), 1000);
    assert_eq!(last.last(), None);
    let stream = "data: {\"usage\":null}\n\ndata: {\"usage\":{\"total_tokens\":7}}\n\n\
        data: {\"usage\":{\"total_tokens\":42}}\n\ndata: {\"usage\":{\"total_tokens\":-1}}\n\n\
        data: {\"usage\":{\"total_tokens\":9}\n\ndata: {\"choices\":[]}\n\ndata: [DONE]\n\n";
    for chunk in stream.as_bytes().chunks(7) {
        last.feed(chunk);
    }
    assert_eq!(last.last(), Some(42));
}
