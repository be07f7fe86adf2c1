//! Fuzzes arrays: a second reader, which reads as Python does, takes an accepted call for one too, and the call goes on as it came.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_zvm::array::parse;
use tidegate_zvm::framer::{FrameStatus, Framer};
use tidegate_zvm::reply::{ReplyEnding, overall_rc, read};

fuzz_target!(|input: (&[u8], &[u8], u16)| {
    let (args, kwargs, bytes_max) = input;
    let call = [b"[\"guest_f\", [", args, b"], {", kwargs, b"}]"].concat();
    for bytes in [args, &call] {
        check(bytes, usize::from(bytes_max));
    }
});

fn check(bytes: &[u8], bytes_max: usize) {
    if overall_rc(bytes).is_some() && depth_max(bytes) < 64 && std::str::from_utf8(bytes).is_ok() {
        assert_ne!(read(bytes), ReplyEnding::Cut);
    }
    match parse(bytes, bytes_max) {
        Ok(call) => {
            assert!(call.bytes.len() <= bytes_max);
            assert!(matches!(call.function.len(), 1..=128));
            assert!(
                call.target
                    .is_none_or(|target| matches!(target.len(), 1..=8))
            );
            for bytes in [bytes, call.bytes.as_ref()] {
                let [name, args, kwargs] = Python::elements(bytes).expect("a call stays a call");
                // A name with half a pair of surrogates is none to serde_json.
                if let Ok(name) = serde_json::from_slice::<String>(name) {
                    assert_eq!(name, *call.function);
                }
                assert!(args.starts_with(b"[") && kwargs.starts_with(b"{"));
            }
            assert_eq!(without_space(&call.bytes), without_space(bytes));
            if depth_max(bytes) < 64 {
                let end = FrameStatus::End(call.bytes.len());
                assert_eq!(Framer::new(bytes.len() + 1).push(&call.bytes), end);
            }
        }
        Err(refused) => assert!(refused.to_string().is_ascii()),
    }
}

/// The bytes without white space, also without that in strings.
fn without_space(bytes: &[u8]) -> Vec<u8> {
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
    bytes
        .iter()
        .copied()
        .filter(|byte| !is_space(byte))
        .collect()
}

/// An upper bound of the nesting.
fn depth_max(bytes: &[u8]) -> usize {
    bytes
        .iter()
        .filter(|byte| matches!(byte, b'[' | b'{'))
        .count()
}

/// A reader of what Python's `json` reads: JSON, with NaN, both infinities and halves of a pair of surrogates.
struct Python<'a> {
    rest: &'a [u8],
}

impl<'a> Python<'a> {
    /// The three elements of an array; `None` if the bytes are not that, or not UTF-8.
    fn elements(bytes: &'a [u8]) -> Option<[&'a [u8]; 3]> {
        std::str::from_utf8(bytes).ok()?;
        let mut python = Self { rest: bytes };
        python.token(b"[")?;
        let first = python.value()?;
        python.token(b",")?;
        let second = python.value()?;
        python.token(b",")?;
        let third = python.value()?;
        python.token(b"]")?;
        python.space();
        python.rest.is_empty().then_some([first, second, third])
    }

    fn value(&mut self) -> Option<&'a [u8]> {
        self.space();
        let from = self.rest;
        match from.first()? {
            b'"' => self.string()?,
            b'[' => self.all(b"[", b"]", |python| python.value().map(drop))?,
            b'{' => self.all(b"{", b"}", |python| {
                python.space();
                python.string()?;
                python.token(b":")?;
                python.value().map(drop)
            })?,
            _ => {
                let words: [&[u8]; 6] = [
                    b"null",
                    b"true",
                    b"false",
                    b"NaN",
                    b"Infinity",
                    b"-Infinity",
                ];
                match words.iter().find(|&&word| from.starts_with(word)) {
                    Some(word) => self.rest = &from[word.len()..],
                    None => self.number()?,
                }
            }
        }
        Some(&from[..from.len() - self.rest.len()])
    }

    fn all(&mut self, opens: &[u8], closes: &[u8], one: fn(&mut Self) -> Option<()>) -> Option<()> {
        self.token(opens)?;
        if self.token(closes).is_some() {
            return Some(());
        }
        loop {
            one(self)?;
            if self.token(closes).is_some() {
                return Some(());
            }
            self.token(b",")?;
        }
    }

    fn string(&mut self) -> Option<()> {
        self.token(b"\"")?;
        loop {
            let (&byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            match byte {
                b'"' => return Some(()),
                b'\\' => {
                    let (&escape, rest) = rest.split_first()?;
                    self.rest = rest;
                    match escape {
                        b'u' => {
                            let (digits, rest) = rest.split_at_checked(4)?;
                            self.rest = rest;
                            digits.iter().all(u8::is_ascii_hexdigit).then_some(())?;
                        }
                        _ => b"\"\\/bfnrt".contains(&escape).then_some(())?,
                    }
                }
                0x20.. => {}
                _ => return None,
            }
        }
    }

    fn number(&mut self) -> Option<()> {
        let _ = self.take(b"-");
        if self.take(b"0").is_none() {
            self.digits()?;
        }
        if self.take(b".").is_some() {
            self.digits()?;
        }
        if self.take(b"e").or_else(|| self.take(b"E")).is_some() {
            let _ = self.take(b"+").or_else(|| self.take(b"-"));
            self.digits()?;
        }
        Some(())
    }

    fn digits(&mut self) -> Option<()> {
        let count = self
            .rest
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        self.rest = &self.rest[count..];
        (count > 0).then_some(())
    }

    fn token(&mut self, token: &[u8]) -> Option<()> {
        self.space();
        self.take(token)
    }

    fn take(&mut self, token: &[u8]) -> Option<()> {
        self.rest = self.rest.strip_prefix(token)?;
        Some(())
    }

    fn space(&mut self) {
        while let [b' ' | b'\t' | b'\n' | b'\r', rest @ ..] = self.rest {
            self.rest = rest;
        }
    }
}
