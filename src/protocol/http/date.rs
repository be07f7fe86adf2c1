//! The date of an answer to which the backend gave none (RFC 9110, 6.6.1).

use std::cell::Cell;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// As it is written: `Sun, 06 Nov 1994 08:49:37 GMT`.
pub(super) type Date = [u8; 29];

thread_local! {
    /// The latest, and its second.
    static LATEST: Cell<(u64, Date)> = const { Cell::new((u64::MAX, [b' '; 29])) };
}

/// The date now. It is written once a second.
pub(super) fn now() -> Date {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let seconds = now.unwrap_or_default().as_secs();
    let (latest, date) = LATEST.get();
    if latest == seconds {
        return date;
    }
    let at = UNIX_EPOCH + Duration::from_secs(seconds);
    let mut date = [b' '; 29];
    let text = httpdate::HttpDate::from(at).to_string();
    date.copy_from_slice(text.as_bytes());
    LATEST.set((seconds, date));
    date
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_is_one_that_can_be_read() {
        let date = String::from_utf8(now().to_vec()).expect("text");
        let read = httpdate::parse_http_date(&date).expect("a date");
        let age = SystemTime::now().duration_since(read).expect("it is past");
        assert!(age < Duration::from_secs(10), "{age:?}");
        assert_eq!(now(), now());
    }
}
