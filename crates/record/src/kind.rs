//! Kinds of values: what the writer is given, what the reader finds, and what the reference calls it.

use std::borrow::Cow;
use std::fmt;
use std::io::Write;
use std::marker::PhantomData;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tidegate_limits::bucket::TokenCount;
use tidegate_limits::call::QuotaKey;
use tidegate_limits::scheduler::QuotaSpent;

use crate::digits::{Ascii, decimal, hexadecimal, micros};
use crate::step::{GateStep, write_steps};

/// A kind of values.
pub trait Kind {
    /// A value for the writer.
    type Input<'a>: Copy + Default + fmt::Debug;
    /// A value from the reader.
    type Output<'a>: Default + fmt::Debug;
    /// The type and the unit, in the words of the reference.
    const WORDS: &'static str;

    /// Appends `key`, which ends with a colon, and the value.
    fn write(out: &mut Vec<u8>, key: &'static str, given: Self::Input<'_>);

    /// Reads a value in any spelling of JSON.
    ///
    /// # Errors
    ///
    /// If it is of another type, or not JSON.
    fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self::Output<'de>, D::Error>;
}

/// Reads a value of this kind.
pub(crate) struct Seed<K>(pub(crate) PhantomData<K>);

impl<'de, K: Kind> DeserializeSeed<'de> for Seed<K> {
    type Value = K::Output<'de>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        K::read(from)
    }
}

fn put(out: &mut Vec<u8>, key: &str, value: &[u8]) {
    out.extend_from_slice(key.as_bytes());
    out.extend_from_slice(value);
}

/// A kind whose values are read as serde reads an `Option` of them.
macro_rules! kind {
    (
        $(#[$meta:meta])*
        $Kind:ident: $words:literal, $Input:ty => $Output:ty, $write:expr, $read:expr
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug)]
        pub struct $Kind;

        impl Kind for $Kind {
            type Input<'a> = $Input;
            type Output<'a> = $Output;
            const WORDS: &'static str = $words;

            #[inline]
            fn write(out: &mut Vec<u8>, key: &'static str, given: Self::Input<'_>) {
                let write: fn(&mut Vec<u8>, &'static str, Self::Input<'_>) = $write;
                write(out, key, given);
            }

            #[inline]
            fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self::Output<'de>, D::Error> {
                $read(from)
            }
        }
    };
}

kind! {
    /// Text.
    Text: "string", Option<&'a str> => Option<Cow<'a, str>>, text, text_found
}
kind! {
    /// The other end of a connection.
    PeerText: "string", Option<Address> => Option<Cow<'a, str>>, peer, text_found
}
kind! {
    /// The address of a host.
    HostText: "string", Option<IpAddr> => Option<Cow<'a, str>>, host, text_found
}
kind! {
    /// The id of a call.
    CallId: "string of 16 hexadecimal digits", Option<u64> => Option<u64>, id, id_found
}
kind! {
    /// The number of a caller, after a `c`.
    CallerText: "string", Option<u64> => Option<Cow<'a, str>>, caller, text_found
}
kind! {
    /// The id of a trace.
    TraceText: "string of 32 hexadecimal digits", Option<u128> => Option<Cow<'a, str>>, trace, text_found
}
kind! {
    /// Whether something is so.
    Flag: "boolean", Option<bool> => Option<bool>, flag, Option::deserialize
}
kind! {
    /// A flag that is written only if it is set.
    OptionalFlag: "`true`, or absent", bool => Option<bool>, mark, Option::deserialize
}
kind! {
    /// A number of things.
    Count: "integer", Option<u64> => Option<u64>, number, whole_found
}
kind! {
    /// A code that may be negative. Written only if there is one.
    OptionalCode: "integer, or absent", Option<i64> => (), code, ignored
}
kind! {
    /// The number of a job. Written only if there is one.
    OptionalKey: "string of 16 hexadecimal digits, or absent", Option<u64> => Option<u64>, key, id_found
}
kind! {
    /// A duration. Written only if there is one.
    OptionalMillis: "number, ms, or absent", Option<Duration> => Option<u64>, duration, milliseconds_found
}
kind! {
    /// Text that is written only if there is one.
    OptionalText: "string, or absent", Option<&'a str> => Option<Cow<'a, str>>, text_if_any, text_found
}
kind! {
    /// A number of bytes.
    Bytes: "integer, bytes", Option<u64> => Option<u64>, number, whole_found
}
kind! {
    /// A moment or a time.
    Nanos: "integer, ns", Option<u64> => Option<u64>, number, whole_found
}
kind! {
    /// A moment.
    Micros: "integer, µs", Option<u64> => Option<u64>, number, whole_found
}
kind! {
    /// A time to three decimal places. The reader has it in microseconds.
    Millis: "number, ms", Option<Duration> => Option<u64>, milliseconds, milliseconds_found
}
kind! {
    /// A cost. The reader has it as a number.
    TokenAmount: "number, tokens", Option<TokenCount> => Option<f64>, tokens, Option::deserialize
}
kind! {
    /// A number with a fraction.
    Amount: "number", Option<f64> => Option<f64>, amount, Option::deserialize
}
kind! {
    /// Draws from quotas.
    DrawList: "list of objects", &'a [QuotaSpent] => Option<Vec<QuotaDraw<'a>>>, draws, draws_found
}
kind! {
    /// Quotas, each with a key.
    KeyList: "list of `[limit, key]`", &'a [QuotaKey] => Option<Vec<(Cow<'a, str>, Cow<'a, str>)>>, keys, keys_found
}
kind! {
    /// The steps of a call. The reader decodes them only where they are needed: [`crate::step::read_steps`].
    StepList: "list of steps", Option<&'a [GateStep<std::sync::Arc<str>>]> => Option<&'a RawValue>, steps, Option::deserialize
}
kind! {
    /// The costs of the calls that meet paced limits.
    CostList: "list of objects", Option<&'a [PacedCost]> => Option<Vec<PacedCost>>, json, Option::deserialize
}
kind! {
    /// The rule of a bucket.
    BucketRuleObject: "object", Option<&'a BucketFields> => Option<BucketFields>, json, Option::deserialize
}

kind! {
    /// State that the process before left, or what became of it.
    CarriedObject: "object", Option<&'a CarriedFields> => Option<CarriedFields>, json, Option::deserialize
}

/// The other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address {
    /// An address and a port.
    Tcp(SocketAddr),
    /// A socket file.
    Unix,
}

/// The draw of a call from one key of a quota.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct QuotaDraw<'a> {
    /// The name of the quota.
    #[serde(borrow)]
    pub limit: Cow<'a, str>,
    /// The owner of the budget.
    #[serde(borrow)]
    pub key: Cow<'a, str>,
    /// The window in which it counts; `None` if the sidecar did not know it.
    #[serde(deserialize_with = "whole_found")]
    pub window: Option<u64>,
    /// The budget of all sidecars in that window.   tokens
    pub total: f64,
    /// The draw of the call.   tokens
    pub cost: f64,
    /// The cost of the call by its answer, if that was known.   tokens
    #[serde(default)]
    pub settled: Option<f64>,
}

impl QuotaDraw<'_> {
    /// Whether the call has cost more than it drew.
    #[must_use]
    pub fn is_beyond(&self) -> bool {
        self.settled.is_some_and(|settled| settled > self.cost)
    }
}

/// The costs of the calls that meet a paced limit.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct PacedCost {
    /// The name of the limit.
    pub name: String,
    /// The lowest cost of a call that meets it.   tokens
    pub cheapest: f64,
    /// The highest.   tokens
    pub most_expensive: f64,
}

/// The rule of a bucket.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct BucketFields {
    /// The name of the rate limit.
    pub name: String,
    /// How much it holds, and how fast it fills.
    pub limit: BucketFigures,
    /// Whether it only observes.
    pub observes: bool,
    /// Whether it refuses a call at once for which it has no tokens.
    pub rejects: bool,
    /// Whether calls go in the order of their arrival.
    pub by_arrival: bool,
    /// Whether a call is charged what it really cost.
    pub settles: bool,
}

/// State that the process before left, or a part of it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct CarriedFields {
    /// Whether nothing is known, and every window counts as used up.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub full: bool,
    /// The departures that count in windows.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub windows: Vec<CarriedWindow>,
    /// The levels of buckets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub levels: Vec<CarriedLevel>,
    /// The calls that may still be at the backend.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<CarriedCallFields>,
    /// Such calls, in the order above, that count no longer.
    #[serde(skip_serializing_if = "is_zero")]
    pub done: usize,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
const fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// The departures of a window.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct CarriedWindow {
    /// The name of the limit.
    pub limit: String,
    /// The instant and the cost of each.
    pub departures: Vec<(u64, u32)>,
}

/// The level of a bucket or of a pace.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct CarriedLevel {
    /// The number of the rate limit; 0 for a pace that is no rate limit of callers.
    pub bucket: u64,
    /// The name of such a pace.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub limit: String,
    /// How much it held.   tokens
    pub tokens: f64,
    /// The instant at which it did.
    pub at_ns: u64,
}

/// A call that may still be at the backend.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct CarriedCallFields {
    /// The name of its function; empty if no limit is for that alone.
    pub function: String,
    /// The name of its class.
    pub class: String,
    /// The number of its backend.
    pub backend: u8,
    /// Cost in windows.
    pub cost: u32,
    /// The instant of its admission.
    pub since_ns: u64,
    /// Whether its last byte had left.
    pub sent: bool,
    /// Whether a byte of its reply had come.
    pub replied: bool,
}

/// The figures of a bucket, or of a pace, which has a rate.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
pub struct BucketFigures {
    /// Size of the bucket.   tokens; of a pace, a ratio
    pub burst: f64,
    /// How fast it fills.   tokens per second
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fill: Option<f64>,
    /// The rate of a pace.   tokens per second
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
}

fn text(out: &mut Vec<u8>, key: &'static str, given: Option<&str>) {
    let Some(word) = given else {
        return put(out, key, b"null");
    };
    out.extend_from_slice(key.as_bytes());
    string(out, word);
}

fn text_if_any(out: &mut Vec<u8>, key: &'static str, given: Option<&str>) {
    if given.is_some() {
        text(out, key, given);
    }
}

/// A string in JSON.
pub(crate) fn string(out: &mut Vec<u8>, word: &str) {
    // Names from the config may contain anything; most need no escape.
    if word.bytes().all(|c| c >= b' ' && c != b'"' && c != b'\\') {
        out.push(b'"');
        out.extend_from_slice(word.as_bytes());
        out.push(b'"');
        return;
    }
    serde_json::to_writer(out, word).expect("writing to memory does not fail");
}

fn peer(out: &mut Vec<u8>, key: &'static str, given: Option<Address>) {
    match given {
        None => put(out, key, b"null"),
        Some(Address::Unix) => put(out, key, b"\"unix\""),
        Some(Address::Tcp(SocketAddr::V4(peer))) => {
            put(out, key, b"\"");
            octets(out, peer.ip().octets());
            out.push(b':');
            decimal(out, peer.port().into());
            out.push(b'"');
        }
        Some(Address::Tcp(peer)) => shown(out, key, format_args!("{peer}")),
    }
}

fn host(out: &mut Vec<u8>, key: &'static str, given: Option<IpAddr>) {
    match given {
        None => put(out, key, b"null"),
        Some(IpAddr::V4(host)) => {
            put(out, key, b"\"");
            octets(out, host.octets());
            out.push(b'"');
        }
        Some(host) => shown(out, key, format_args!("{host}")),
    }
}

fn octets(out: &mut Vec<u8>, octets: [u8; 4]) {
    for (nth, octet) in octets.into_iter().enumerate() {
        if nth > 0 {
            out.push(b'.');
        }
        decimal(out, octet.into());
    }
}

fn id(out: &mut Vec<u8>, key: &'static str, given: Option<u64>) {
    let Some(id) = given else {
        return put(out, key, b"null");
    };
    put(out, key, b"\"");
    out.extend_from_slice(&hexadecimal(id).0);
    out.push(b'"');
}

fn caller(out: &mut Vec<u8>, key: &'static str, given: Option<u64>) {
    let Some(caller) = given else {
        return put(out, key, b"null");
    };
    put(out, key, b"\"c");
    decimal(out, caller);
    out.push(b'"');
}

fn trace(out: &mut Vec<u8>, key: &'static str, given: Option<u128>) {
    match given {
        None => put(out, key, b"null"),
        Some(trace) => shown(out, key, format_args!("{trace:032x}")),
    }
}

fn flag(out: &mut Vec<u8>, key: &'static str, given: Option<bool>) {
    let value: &[u8] = match given {
        None => b"null",
        Some(true) => b"true",
        Some(false) => b"false",
    };
    put(out, key, value);
}

fn mark(out: &mut Vec<u8>, key: &'static str, is_set: bool) {
    if is_set {
        put(out, key, b"true");
    }
}

fn number(out: &mut Vec<u8>, key: &'static str, given: Option<u64>) {
    let Some(value) = given else {
        return put(out, key, b"null");
    };
    out.extend_from_slice(key.as_bytes());
    decimal(out, value);
}

fn code(out: &mut Vec<u8>, key: &'static str, given: Option<i64>) {
    let Some(code) = given else {
        return;
    };
    put(out, key, if code.is_negative() { b"-" } else { b"" });
    decimal(out, code.unsigned_abs());
}

fn key(out: &mut Vec<u8>, key: &'static str, given: Option<u64>) {
    if given.is_some() {
        id(out, key, given);
    }
}

fn duration(out: &mut Vec<u8>, key: &'static str, given: Option<Duration>) {
    if given.is_some() {
        milliseconds(out, key, given);
    }
}

fn milliseconds(out: &mut Vec<u8>, key: &'static str, given: Option<Duration>) {
    let micros = given.map(micros);
    number(out, key, micros.map(|micros| micros / 1000));
    if let Some(micros) = micros {
        let mut places = Ascii(*b".000");
        places.decimal(1, 3, micros % 1000);
        out.extend_from_slice(&places.0);
    }
}

/// Mostly whole.
fn tokens(out: &mut Vec<u8>, key: &'static str, given: Option<TokenCount>) {
    match given {
        Some(count) if !count.micros().is_multiple_of(1_000_000) => {
            amount(out, key, Some(count.tokens()));
        }
        count => number(out, key, count.map(|count| count.micros() / 1_000_000)),
    }
}

fn amount(out: &mut Vec<u8>, key: &'static str, given: Option<f64>) {
    let Some(amount) = given else {
        return put(out, key, b"null");
    };
    out.extend_from_slice(key.as_bytes());
    fraction(out, amount);
}

/// A number; a whole one without a point.
pub(crate) fn fraction(out: &mut Vec<u8>, amount: f64) {
    write!(out, "{amount}").expect("writing to memory does not fail");
}

fn draws(out: &mut Vec<u8>, key: &'static str, given: &[QuotaSpent]) {
    if given.is_empty() {
        return put(out, key, b"null");
    }
    out.extend_from_slice(key.as_bytes());
    let mut before = r#"[{"limit":"#;
    for draw in given {
        text(out, before, Some(&draw.of.quota));
        text(out, r#","key":"#, Some(&draw.of.key));
        number(out, r#","window":"#, draw.window);
        number(out, r#","total":"#, Some(draw.total));
        number(out, r#","cost":"#, Some(draw.cost));
        if draw.settled.is_some() {
            number(out, r#","settled":"#, draw.settled);
        }
        before = r#"},{"limit":"#;
    }
    out.extend_from_slice(b"}]");
}

fn keys(out: &mut Vec<u8>, key: &'static str, given: &[QuotaKey]) {
    if given.is_empty() {
        return put(out, key, b"null");
    }
    out.extend_from_slice(key.as_bytes());
    let mut before = "[[";
    for of in given {
        text(out, before, Some(&of.quota));
        text(out, ",", Some(&of.key));
        before = "],[";
    }
    out.extend_from_slice(b"]]");
}

fn steps(out: &mut Vec<u8>, key: &'static str, given: Option<&[GateStep<std::sync::Arc<str>>]>) {
    match given {
        None => put(out, key, b"null"),
        Some(steps) => {
            out.extend_from_slice(key.as_bytes());
            write_steps(out, steps);
        }
    }
}

fn json<T: Serialize + ?Sized>(out: &mut Vec<u8>, key: &'static str, given: Option<&T>) {
    out.extend_from_slice(key.as_bytes());
    serde_json::to_writer(out, &given).expect("writing to memory does not fail");
}

/// Something that is written by its `Display`, as a string without escapes.
fn shown(out: &mut Vec<u8>, key: &'static str, what: fmt::Arguments<'_>) {
    put(out, key, b"\"");
    out.write_fmt(what)
        .expect("writing to memory does not fail");
    out.push(b'"');
}

fn ignored<'de, D: Deserializer<'de>>(from: D) -> Result<(), D::Error> {
    IgnoredAny::deserialize(from).map(drop)
}

/// A string, borrowed if it has no escapes.
pub(crate) struct Word<'a>(pub(crate) Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Word<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Letters;
        impl<'de> Visitor<'de> for Letters {
            type Value = Word<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E: Error>(self, value: &'de str) -> Result<Word<'de>, E> {
                Ok(Word(value.into()))
            }

            fn visit_str<E: Error>(self, value: &str) -> Result<Word<'de>, E> {
                Ok(Word(value.to_owned().into()))
            }
        }
        from.deserialize_str(Letters)
    }
}

fn text_found<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Cow<'de, str>>, D::Error> {
    Ok(Option::<Word<'_>>::deserialize(from)?.map(|word| word.0))
}

fn draws_found<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<Vec<QuotaDraw<'de>>>, D::Error> {
    Option::deserialize(from)
}

type KeyPair<'a> = (Cow<'a, str>, Cow<'a, str>);

fn keys_found<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<KeyPair<'de>>>, D::Error> {
    let keys = Option::<Vec<(Word<'de>, Word<'de>)>>::deserialize(from)?;
    Ok(keys.map(|keys| {
        keys.into_iter()
            .map(|(limit, key)| (limit.0, key.0))
            .collect()
    }))
}

fn id_found<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    let Some(Word(word)) = Option::<Word<'_>>::deserialize(from)? else {
        return Ok(None);
    };
    let is_id = word.len() == 16 && word.bytes().all(|c| c.is_ascii_hexdigit());
    let id = u64::from_str_radix(&word, 16).ok().filter(|_| is_id);
    id.map(Some)
        .ok_or_else(|| D::Error::custom("an id has 16 hexadecimal digits"))
}

/// A whole number of any spelling: `1`, `1.0`, `1e0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Whole(pub(crate) u64);

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Digits;
        impl Visitor<'_> for Digits {
            type Value = Whole;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number")
            }

            fn visit_u64<E: Error>(self, value: u64) -> Result<Whole, E> {
                Ok(Whole(value))
            }

            fn visit_f64<E: Error>(self, value: f64) -> Result<Whole, E> {
                whole(value)
                    .map(Whole)
                    .ok_or_else(|| E::custom("it is not a whole number"))
            }
        }
        from.deserialize_any(Digits)
    }
}

/// A whole number that a float has exactly.
pub(crate) fn whole(value: f64) -> Option<u64> {
    const LIMIT: f64 = 18_446_744_073_709_551_616.0;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is whole, and in the range"
    )]
    (value.fract() == 0.0 && (0.0..LIMIT).contains(&value)).then_some(value as u64)
}

fn whole_found<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    Ok(Option::<Whole>::deserialize(from)?.map(|it| it.0))
}

/// Whole microseconds, from milliseconds with three decimal places.
fn milliseconds_found<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    let Some(milliseconds) = Option::<f64>::deserialize(from)? else {
        return Ok(None);
    };
    let micros = (milliseconds * 1e3).round();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it lies between 0 and 10^16"
    )]
    match (0.0..=1e16).contains(&micros) {
        true => Ok(Some(micros as u64)),
        false => Err(D::Error::custom("a time is out of range")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_times_are_what_serde_reads_back() {
        for word in [
            "",
            "nova",
            "a \"b\"",
            "a\\b",
            "a\nb\u{1}",
            "\u{7f}ü\u{2028}",
        ] {
            let mut out = Vec::new();
            string(&mut out, word);
            let read: String = serde_json::from_slice(&out).expect("a string in JSON");
            assert_eq!(read, word);
        }
        for (micros, expected) in [
            (0, "0.000"),
            (7, "0.007"),
            (1000, "1.000"),
            (12_345, "12.345"),
        ] {
            let mut out = Vec::new();
            milliseconds(&mut out, "", Some(Duration::from_micros(micros)));
            assert_eq!(out, expected.as_bytes());
        }
    }

    #[test]
    fn addresses_are_what_their_display_is() {
        for peer_of in [
            "127.0.0.1:1",
            "10.200.0.99:65535",
            "[::1]:80",
            "[fe80::1%3]:80",
        ] {
            let address: SocketAddr = peer_of.parse().expect("an address");
            let mut out = Vec::new();
            peer(&mut out, "", Some(Address::Tcp(address)));
            assert_eq!(out, format!("\"{address}\"").into_bytes());
            out.clear();
            host(&mut out, "", Some(address.ip()));
            assert_eq!(out, format!("\"{}\"", address.ip()).into_bytes());
        }
    }

    #[test]
    fn a_whole_number_has_many_spellings() {
        let check = |text: &str, expected: Option<u64>| {
            let read: Result<Whole, _> = serde_json::from_str(text);
            assert_eq!(read.ok().map(|it| it.0), expected, "{text}");
        };
        check("7", Some(7));
        check("7.0", Some(7));
        check("70e-1", Some(7));
        check("1e0", Some(1));
        check("1E3", Some(1000));
        check("18446744073709551615", Some(u64::MAX));
        for wrong in ["7.5", "-1", "1e20", "\"7\"", "true", "[7]"] {
            check(wrong, None);
        }
    }
}
