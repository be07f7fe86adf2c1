//! Instants as other programs write them.

/// A second.   ns
pub(super) const SECOND: u64 = 1_000_000_000;

/// Apache's `%t` and nginx's `$time_local`, without the brackets.
pub(super) const LOCAL: &str = "%d/%b/%Y:%H:%M:%S %z";
/// nginx's `$time_iso8601`.
pub(super) const ISO: &str = "%Y-%m-%dT%H:%M:%S%z";
/// HAProxy's date, before its milliseconds. It has no zone.
pub(super) const HAPROXY: &str = "%d/%b/%Y:%H:%M:%S";

const MONTHS: [&[u8]; 12] = [
    b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec",
];

/// A date and a time of day, as far as they are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Moment {
    year: i64,
    month: i64,
    day: i64,
    of_day: i64,
    zone: i64,
    /// Seconds since the epoch, if they are given as such.
    epoch: Option<u64>,
    /// The part of the second, if it is known.   ns
    fraction: Option<u64>,
}

impl Moment {
    /// Reads a text by a pattern of `strftime`, and returns what follows.
    pub(super) fn read<'a>(&mut self, pattern: &str, text: &'a [u8]) -> Option<&'a [u8]> {
        let mut rest = text;
        let mut pattern = pattern.bytes();
        while let Some(next) = pattern.next() {
            if next != b'%' {
                rest = rest.strip_prefix(&[next])?;
                continue;
            }
            let conversion = pattern.next()?;
            rest = self.convert(conversion, rest)?;
        }
        Some(rest)
    }

    fn convert<'a>(&mut self, conversion: u8, text: &'a [u8]) -> Option<&'a [u8]> {
        let up_to = |most| number(text, most).map(|(value, rest)| (value as i64, rest));
        let (value, rest) = match conversion {
            b'b' => {
                let name = text.get(..3)?;
                let month = MONTHS.iter().position(|month| *month == name)?;
                self.month = month as i64 + 1;
                return Some(&text[3..]);
            }
            b'z' => return self.zone(text),
            b'F' => return self.read("%Y-%m-%d", text),
            b'T' => return self.read("%H:%M:%S", text),
            b's' => {
                let (value, rest) = number(text, 11)?;
                self.epoch = Some(value);
                return Some(rest);
            }
            b'%' => return text.strip_prefix(b"%"),
            b'Y' => up_to(4)?,
            _ => up_to(2)?,
        };
        match conversion {
            b'Y' => self.year = value,
            b'm' => self.month = value,
            b'd' => self.day = value,
            b'H' => self.of_day += value * 3600,
            b'M' => self.of_day += value * 60,
            b'S' => self.of_day += value,
            _ => return None,
        }
        Some(rest)
    }

    /// `+0100`, `+01:00` or `Z`.
    fn zone<'a>(&mut self, text: &'a [u8]) -> Option<&'a [u8]> {
        let (sign, text) = match text.split_first()? {
            (b'Z', rest) => return Some(rest),
            (b'+', rest) => (1, rest),
            (b'-', rest) => (-1, rest),
            _ => return None,
        };
        let (hours, rest) = number(text, 2)?;
        let rest = rest.strip_prefix(b":").unwrap_or(rest);
        let (minutes, rest) = number(rest, 2)?;
        self.zone = sign * (hours as i64 * 3600 + minutes as i64 * 60);
        Some(rest)
    }

    /// Sets seconds since the epoch.
    pub(super) const fn at_epoch(&mut self, seconds: u64) {
        self.epoch = Some(seconds);
    }

    /// Sets the part of the second.   ns
    pub(super) const fn at_fraction(&mut self, ns: u64) {
        self.fraction = Some(ns);
    }

    /// Whether only the second is known.
    pub(super) const fn is_whole(&self) -> bool {
        self.fraction.is_none()
    }

    /// Nanoseconds since the epoch; `None` if there is no date, or none that we can have met.
    pub(super) fn since_epoch(&self) -> Option<u64> {
        let seconds = match self.epoch {
            Some(epoch) => epoch,
            None => {
                let is_date = (1..=12).contains(&self.month) && (1..=31).contains(&self.day);
                if !is_date || !(1970..=2200).contains(&self.year) {
                    return None;
                }
                let days = days(self.year, self.month, self.day);
                u64::try_from(days * 86_400 + self.of_day - self.zone).ok()?
            }
        };
        seconds
            .checked_mul(SECOND)?
            .checked_add(self.fraction.unwrap_or(0))
    }
}

/// Whether `strftime` of this pattern can be read.
pub(super) fn is_readable(pattern: &str) -> bool {
    let mut bytes = pattern.bytes();
    while let Some(next) = bytes.next() {
        if next == b'%' && !bytes.next().is_some_and(|it| b"YmdHMSbzFTs%".contains(&it)) {
            return false;
        }
    }
    true
}

/// Days from the epoch to a date (Howard Hinnant, "chrono-compatible low-level date algorithms").
const fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year - era * 400;
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = of_era * 365 + of_era / 4 - of_era / 100 + of_year;
    era * 146_097 + day_of_era - 719_468
}

/// Leading digits, from one to this number of them, and what follows.
pub(super) fn number(text: &[u8], most: usize) -> Option<(u64, &[u8])> {
    let digits = text.iter().take(most).take_while(|it| it.is_ascii_digit());
    let count = digits.count();
    let (digits, rest) = text.split_at(count);
    let value: u64 = str::from_utf8(digits).ok()?.parse().ok()?;
    Some((value, rest))
}

/// Seconds with a fraction such as `0.123`, in nanoseconds, and what follows.
pub(super) fn decimal(text: &[u8]) -> Option<(u64, &[u8])> {
    let (whole, rest) = number(text, 11)?;
    let whole = whole.checked_mul(SECOND)?;
    let Some(after) = rest.strip_prefix(b".") else {
        return Some((whole, rest));
    };
    let (fraction, rest) = number(after, 9)?;
    let digits = (after.len() - rest.len()) as u32;
    Some((whole.checked_add(fraction * 10_u64.pow(9 - digits))?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_are_those_that_date_prints() {
        let check = |pattern: &str, text: &str, seconds: u64| {
            let mut moment = Moment::default();
            assert_eq!(
                moment.read(pattern, text.as_bytes()),
                Some(&b""[..]),
                "{text}"
            );
            assert_eq!(moment.since_epoch(), Some(seconds * SECOND), "{text}");
        };
        check(LOCAL, "24/Nov/2026:10:11:12 +0000", 1_795_515_072);
        check(LOCAL, "24/Nov/2026:11:11:12 +0100", 1_795_515_072);
        check(LOCAL, "23/Nov/2026:22:41:12 -1130", 1_795_515_072);
        check(ISO, "2026-11-24T10:11:12+00:00", 1_795_515_072);
        check(ISO, "2026-11-24T10:11:12Z", 1_795_515_072);
        check(HAPROXY, "29/Feb/2024:00:00:00", 1_709_164_800);
        check("%F %T", "1970-01-02 00:00:01", 86_401);
        check("%s", "1795515072", 1_795_515_072);
    }

    #[test]
    fn what_is_no_date_is_not_read() {
        for text in [
            "",
            "x",
            "24/Foo/2026:10:11:12 +0000",
            "24/Nov/2026",
            "0/Nov/2026:10:11:12 +0000",
        ] {
            let mut moment = Moment::default();
            let read = moment.read(LOCAL, text.as_bytes());
            assert!(read.is_none() || moment.since_epoch().is_none(), "{text}");
        }
        assert!(!is_readable("%A") && !is_readable("%") && is_readable("%d.%m.%Y"));
    }

    #[test]
    fn seconds_have_up_to_nine_digits() {
        let check = |text: &str, ns| assert_eq!(decimal(text.as_bytes()), ns, "{text}");
        check("0.123", Some((123_000_000, &b""[..])));
        check("12", Some((12 * SECOND, &b""[..])));
        check("1.5, 2", Some((1_500_000_000, &b", 2"[..])));
        check(".5", None);
        check("-", None);
    }
}
