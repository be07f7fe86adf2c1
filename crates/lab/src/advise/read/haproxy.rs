//! HAProxy's log lines: `option httplog` and `option tcplog`, with or without syslog in front.
//!
//! HAProxy measures the wait in its own queue (`Tw`), so these logs also show which calls waited.

use std::borrow::Cow;

use super::instant::{HAPROXY, Moment, number};
use super::request::{LoggedRequest, RequestOutcome, asked};

/// A millisecond.   ns
const MS: u64 = 1_000_000;

/// Reads a line; `None` if it is no request.
pub(super) fn read(line: &[u8]) -> Option<LoggedRequest<'_>> {
    let line = str::from_utf8(line).ok()?;
    let (before, at, rest) = date(line)?;
    let mut words = rest.split(' ');
    let (_frontend, server, timers) = (words.next()?, words.next()?, words.next()?);
    // `+` stands before a total when the line is written early (`option logasap`).
    let timers: Option<Vec<Option<u64>>> = timers.split('/').map(timer).collect();
    let timers = timers?;
    let is_http = match timers.len() {
        5 => true,
        3 => false,
        _ => return None,
    };
    let first = words.next()?;
    let status: Option<u16> = match is_http {
        true => Some(first)
            .filter(|it| *it != "-1")
            .map_or(Some(0), |it| it.parse().ok()),
        false => Some(0),
    };
    let status = status?;
    // The status of a TCP line is the number of bytes, and its next word the state.
    let state = match is_http {
        true => words.nth(3)?,
        false => words.next()?,
    };
    if state.len() < 2 || state.len() > 4 {
        return None;
    }
    let request = match is_http {
        true => {
            let start = rest.find(" \"")?;
            let line = rest[start + 2..].split('"').next()?;
            Some(asked(line).unwrap_or(("OTHER", "/")))
        }
        false => None,
    };
    let [wait, connect, all] = match *timers {
        [_, wait, connect, _, all] | [wait, connect, all] => [wait, connect, all],
        _ => return None,
    };
    let request_took = if is_http { timers[0] } else { Some(0) };
    // A connection on which no request came is no call.
    let arrived = at.checked_add(request_took?.checked_mul(MS)?)?;
    let is_sent = wait.is_some() && !server.ends_with("<NOSRV>") && has_left(state);
    let after = |ms: Option<u64>| ms.unwrap_or(0).saturating_mul(MS);
    let started = arrived
        .saturating_add(after(wait))
        .saturating_add(after(connect));
    let ended = at.saturating_add(after(all));
    Some(LoggedRequest {
        asked: request.map(|(method, path)| (method, Cow::Borrowed(path))),
        caller: address(before),
        arrived,
        started: is_sent.then_some(started.min(ended.max(arrived))),
        ended: ended.max(arrived),
        result: outcome(state, is_sent, status),
        is_whole: false,
    })
}

/// Splits a line at its date: the text before it, the date in ns since the epoch, and the text after it.
fn date(line: &str) -> Option<(&str, u64, &str)> {
    let mut from = 0;
    // Syslog may put brackets of its own in front: `haproxy[123]:`.
    while let Some(open) = line[from..].find('[') {
        let open = from + open;
        from = open + 1;
        let mut moment = Moment::default();
        let Some(rest) = moment.read(HAPROXY, &line.as_bytes()[from..]) else {
            continue;
        };
        let (ms, rest) = number(rest.strip_prefix(b".")?, 3)?;
        moment.at_fraction(ms * MS);
        let rest = rest.strip_prefix(b"] ")?;
        return Some((
            &line[..open],
            moment.since_epoch()?,
            str::from_utf8(rest).ok()?,
        ));
    }
    None
}

/// A timer in ms; -1 is none.
fn timer(text: &str) -> Option<Option<u64>> {
    match text {
        "-1" => Some(None),
        _ => text.trim_start_matches('+').parse().ok().map(Some),
    }
}

/// The address of the client, without its port: the last word before the date.
fn address(before: &str) -> Option<&str> {
    let word = before.trim_end().rsplit(' ').next()?;
    let (address, port) = word.rsplit_once(':')?;
    port.parse::<u16>().ok().map(|_| address)
}

/// Whether a request in this state had left for a server. A server that refused it counts: that is
/// how a backend breaks.
fn has_left(state: &str) -> bool {
    let mut state = state.chars();
    match (state.next(), state.next()) {
        (_, Some('Q' | 'R' | 'T')) => false,
        (Some(cause), Some('C')) => !matches!(cause, 'C' | 'c'),
        _ => true,
    }
}

/// Decodes the state at the end of a line: which side ended the request, and in which phase.
fn outcome(state: &str, is_sent: bool, status: u16) -> RequestOutcome {
    let mut state = state.chars();
    let (cause, phase) = (state.next(), state.next());
    match (cause, phase) {
        // A limit of HAProxy's own queue.
        (Some('s' | 'S'), Some('Q')) => RequestOutcome::Refused,
        (Some('C' | 'c'), _) => RequestOutcome::Left,
        (Some('S' | 's' | 'D'), _) => RequestOutcome::Failed,
        (Some('-'), _) if status > 0 => RequestOutcome::Status(status),
        (Some('-'), _) => RequestOutcome::Status(200),
        _ if is_sent => RequestOutcome::Failed,
        _ => RequestOutcome::Refused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 1_795_515_072_345 * MS;

    fn line(timers: &str, status: &str, state: &str) -> String {
        format!(
            "Nov 24 10:11:12 host haproxy[14389]: 10.0.1.2:33317 [24/Nov/2026:10:11:12.345] web \
             sdk/s1 {timers} {status} 2750 - - {state} 1/1/1/1/0 0/0 {{x|y}} \
             \"GET /guests/A/info?token=b HTTP/1.1\""
        )
    }

    #[test]
    fn a_line_has_the_wait_in_the_queue_and_the_time_at_the_backend() {
        let line = line("10/20/5/40/80", "200", "----");
        let read = read(line.as_bytes()).expect("a request");
        assert_eq!(read.asked, Some(("GET", "/guests/A/info".into())));
        assert_eq!(read.caller, Some("10.0.1.2"));
        assert_eq!(read.arrived, START + 10 * MS);
        assert_eq!(read.started, Some(START + 35 * MS));
        assert_eq!(read.ended, START + 80 * MS);
        assert_eq!(read.result, RequestOutcome::Status(200));
    }

    #[test]
    fn states_say_who_ended_a_call() {
        let check =
            |timers: &str, status: &str, state: &str, is_sent: bool, expected: RequestOutcome| {
                let line = line(timers, status, state);
                let read = read(line.as_bytes()).expect("a request");
                assert_eq!(
                    (read.started.is_some(), read.result),
                    (is_sent, expected),
                    "{state}"
                );
            };
        check(
            "0/0/0/9/9",
            "503",
            "----",
            true,
            RequestOutcome::Status(503),
        );
        check("0/0/-1/-1/9", "503", "SC--", true, RequestOutcome::Failed);
        check("0/0/1/-1/9", "504", "sH--", true, RequestOutcome::Failed);
        check("0/0/1/-1/9", "502", "SH--", true, RequestOutcome::Failed);
        check("0/9/-1/-1/9", "503", "sQ--", false, RequestOutcome::Refused);
        check("0/-1/-1/-1/9", "-1", "CQ--", false, RequestOutcome::Left);
        check("0/0/1/-1/9", "-1", "CH--", true, RequestOutcome::Left);
        check(
            "0/-1/-1/-1/0",
            "403",
            "PR--",
            false,
            RequestOutcome::Refused,
        );
    }

    #[test]
    fn tcp_lines_are_calls_without_a_function() {
        let line =
            "10.0.1.2:33313 [24/Nov/2026:10:11:12.345] fnt bck/srv1 3/2/50 212 -- 0/0/0/0/3 0/0";
        let read = read(line.as_bytes()).expect("a connection");
        assert_eq!(read.asked, None);
        assert_eq!(read.started, Some(START + 5 * MS));
        assert_eq!(read.ended, START + 50 * MS);
    }

    #[test]
    fn what_is_no_request_is_not_read() {
        for line in [
            "",
            "Nov 24 10:11:12 host haproxy[1]: Proxy web started.",
            "10.0.1.2:1 [24/Nov/2026:10:11:12.345] web/1: SSL handshake failure",
            "10.0.1.2:1 [24/Nov/2026:10:11:12.345] web sdk/<NOSRV> -1/-1/-1/-1/5 408 0 - - cR-- 1/1/0/0/0 0/0 \"<BADREQ>\"",
        ] {
            assert_eq!(read(line.as_bytes()), None, "{line}");
        }
    }
}
