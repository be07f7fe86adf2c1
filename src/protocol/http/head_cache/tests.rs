use super::*;

const BOUNDS: HeadBounds = HeadBounds {
    fields: 100,
    bytes: 65_536,
};

fn read_now(bytes: &[u8]) -> KnownHead {
    read(bytes, BOUNDS, String::new)
        .expect("it is good")
        .expect("it is whole")
}

fn of(path: &str, length: usize) -> Vec<u8> {
    format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n").into_bytes()
}

#[test]
fn a_head_that_comes_again_is_read_once() {
    let bytes = of("/guests/A/info", 3);
    let first = read_now(&bytes);
    let second = read_now(&bytes);
    assert!(
        !Arc::ptr_eq(&first.head, &second.head),
        "the first is not kept"
    );
    let third = read_now(&[&bytes[..], b"abc"].concat());
    assert!(Arc::ptr_eq(&second.head, &third.head));
    assert_eq!(
        (third.length, third.framing),
        (bytes.len(), Framing::Length(3))
    );
}

#[test]
fn heads_that_begin_alike_are_not_taken_for_each_other() {
    let long = format!("/{}", "x".repeat(LINE));
    for length in [1, 2, 1, 1, 2, 2, 1] {
        let read = read_now(&of(&long, length));
        assert_eq!(read.framing, Framing::Length(length as u64));
    }
}

#[test]
fn any_two_heads_that_take_turns_are_both_kept() {
    for pair in 0..2000 {
        let heads = [0, 1].map(|it| of(&format!("/{pair}/{it}"), 0));
        for _ in 0..2 {
            for bytes in &heads {
                read_now(bytes);
            }
        }
        let kept = heads.each_ref().map(|bytes| read_now(bytes).head);
        let again = heads.each_ref().map(|bytes| read_now(bytes).head);
        assert!(
            kept.iter()
                .zip(&again)
                .all(|(one, other)| Arc::ptr_eq(one, other)),
            "{pair}"
        );
    }
}

#[test]
fn a_part_of_a_known_head_is_a_part() {
    let bytes = of("/part", 0);
    for _ in 0..3 {
        read_now(&bytes);
    }
    for cut in 1..bytes.len() {
        let part = read(&bytes[..cut], BOUNDS, String::new).expect("it is good so far");
        assert!(part.is_none(), "{cut}");
    }
}

#[test]
fn other_bounds_are_heeded() {
    let bytes = of("/bounds", 0);
    for _ in 0..3 {
        read_now(&bytes);
    }
    let fewer = HeadBounds {
        fields: 1,
        ..BOUNDS
    };
    assert!(read(&bytes, fewer, String::new).is_err(), "it has two");
}

#[test]
fn a_head_of_many_that_come_once_stays() {
    let bytes = of("/stays", 0);
    read_now(&bytes);
    let kept = read_now(&bytes);
    for other in 0..10_000 {
        read_now(&of(&format!("/other/{other}"), 0));
    }
    assert!(Arc::ptr_eq(&kept.head, &read_now(&bytes).head));
    let places = HEADS.with_borrow(|heads| heads.places.len());
    assert_eq!(places, KEPT);
}

#[test]
fn some_heads_with_the_same_first_line_are_kept() {
    let heads = [of("/same", 1), of("/same", 22)];
    for bytes in heads.iter().cycle().take(6) {
        read_now(bytes);
    }
    for bytes in &heads {
        assert!(Arc::ptr_eq(&read_now(bytes).head, &read_now(bytes).head));
    }
}

#[test]
fn a_long_head_is_not_kept() {
    let bytes = of(&format!("/{}", "x".repeat(KEPT_BYTES)), 0);
    let first = read_now(&bytes);
    read_now(&bytes);
    assert!(!Arc::ptr_eq(&first.head, &read_now(&bytes).head));
}
