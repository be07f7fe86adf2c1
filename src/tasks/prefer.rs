//! `Prefer: respond-async` (RFC 7240): a client asks not to wait.

use std::time::Duration;

use http::header::HeaderValue;

use crate::call::Headers;
use crate::call::prefer::{PREFER, items, name_and_value, seconds};

/// The request of a client to hand a call over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preference {
    /// How long the client waits for the answer itself before it comes back (`wait=N`).
    pub wait: Duration,
}

impl Preference {
    /// Whether a request states any preference.
    #[must_use]
    pub fn is_in(headers: &Headers) -> bool {
        headers.contains(PREFER.as_str())
    }

    /// Removes `respond-async` and `wait` from a request's headers. The backend gets the other
    /// preferences. `None`, and nothing removed, without `respond-async`.
    ///
    /// A `wait` that is not a number of seconds is ignored.
    #[must_use]
    pub fn take(headers: &mut Headers) -> Option<Self> {
        let mut is_async = false;
        let mut wait = None;
        let mut others = Vec::new();
        for value in headers.get_all(PREFER.as_str()) {
            for preference in items(value) {
                let (name, value) = name_and_value(preference);
                if name.eq_ignore_ascii_case(b"respond-async") {
                    is_async = true;
                } else if name.eq_ignore_ascii_case(b"wait") {
                    // Of two, the first counts (RFC 7240, 2).
                    wait.get_or_insert(seconds(value));
                } else if !name.is_empty() {
                    others.push(preference);
                }
            }
        }
        if !is_async {
            return None;
        }
        let others = HeaderValue::from_bytes(&others.join(&b", "[..]));
        headers.remove(PREFER.as_str());
        if let Ok(others) = others
            && !others.is_empty()
        {
            headers.append(&PREFER, &others);
        }
        Some(Self {
            wait: wait.flatten().unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The preference, in seconds to wait, and the header that the backend gets.
    fn check(values: &[&str], wait: Option<u64>, left: &[&str]) {
        let mut headers = Headers::default();
        for value in values {
            headers.append(&PREFER, &value.parse().expect("a value"));
        }
        let wanted = Preference::take(&mut headers).map(|it| it.wait.as_secs());
        assert_eq!(wanted, wait, "{values:?}");
        let cause: Vec<_> = headers.get_all(PREFER.as_str()).collect();
        assert_eq!(
            cause,
            left.iter().map(|it| it.as_bytes()).collect::<Vec<_>>(),
            "{values:?}"
        );
    }

    #[test]
    fn a_call_is_handed_over_only_by_respond_async() {
        check(&[], None, &[]);
        check(&["wait=10"], None, &["wait=10"]);
        check(&["return=minimal"], None, &["return=minimal"]);
        check(&["respond-asynch"], None, &["respond-asynch"]);
        check(
            &["foo=\"a, respond-async\""],
            None,
            &["foo=\"a, respond-async\""],
        );
        check(
            &["foo=\"a\\\", respond-async\""],
            None,
            &["foo=\"a\\\", respond-async\""],
        );
        check(&["respond-async"], Some(0), &[]);
        check(&["Respond-Async; foo=1"], Some(0), &[]);
    }

    #[test]
    fn the_first_wait_counts_if_it_is_a_number_of_seconds() {
        check(&["respond-async, wait=10"], Some(10), &[]);
        check(&["wait=\"7\"", "respond-async"], Some(7), &[]);
        check(&["respond-async, wait = 3 ; x, wait=9"], Some(3), &[]);
        for wait in ["-1", "+1", "1.5", "", "x", "4294967296"] {
            check(&[&format!("respond-async, wait={wait}")], Some(0), &[]);
        }
    }

    #[test]
    fn the_backend_gets_the_other_preferences() {
        check(
            &["return=minimal, respond-async", "wait=1, x=\"a,b\";y"],
            Some(1),
            &["return=minimal, x=\"a,b\";y"],
        );
        check(&[",, respond-async ,"], Some(0), &[]);
    }
}
