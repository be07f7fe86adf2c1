//! The log of another program: which format it has, and the calls in it.

use std::fmt;
use std::str::FromStr;

use tidegate_advice::sample::Sample;

use super::request::{Behind, LoggedRequest, NamePool};
use super::shown::{is_sdkserver, shown};
use super::template::Template;
use super::whole_seconds::{Blur, spread};
use super::{CALLS_MAX, haproxy, json};

/// Formats for Apache and nginx: those of docs/how-to/before-you-install.md, and those that packages and
/// manuals use, with a duration at the end. The first that reads most lines counts.
const USUAL: [&str; 16] = [
    "%{usec}t %D %>s %m %U %a",
    "$msec $request_time \"$upstream_response_time\" $status $request_method $uri $remote_addr",
    "%h %l %u %t \"%r\" %>s %b \"%{Referer}i\" \"%{User-Agent}i\" %D",
    "%h %l %u %t \"%r\" %>s %b \"%{Referer}i\" \"%{User-Agent}i\" %T/%D",
    "%h %l %u %t \"%r\" %>s %b %D",
    "%h %l %u %t \"%r\" %>s %b %T/%D",
    "%v:%p %h %l %u %t \"%r\" %>s %O \"%{Referer}i\" \"%{User-Agent}i\" %D",
    "%v:%p %h %l %u %t \"%r\" %>s %O \"%{Referer}i\" \"%{User-Agent}i\" %T/%D",
    "$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent \
     \"$http_referer\" \"$http_user_agent\" rt=$request_time uct=\"$upstream_connect_time\" \
     uht=\"$upstream_header_time\" urt=\"$upstream_response_time\"",
    "$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent \
     \"$http_referer\" \"$http_user_agent\" rt=$request_time uct=$upstream_connect_time \
     uht=$upstream_header_time urt=$upstream_response_time",
    "$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent \
     \"$http_referer\" \"$http_user_agent\" rt=$request_time urt=\"$upstream_response_time\"",
    "$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent \
     \"$http_referer\" \"$http_user_agent\" rt=$request_time",
    "$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent \
     \"$http_referer\" \"$http_user_agent\" $request_time",
    "$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent \
     \"$http_referer\" \"$http_user_agent\" $request_time $upstream_response_time",
    "$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent \
     \"$http_referer\" \"$http_user_agent\" \"$http_x_forwarded_for\" $request_time",
    "$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent \
     \"$http_referer\" \"$http_user_agent\" \"$http_x_forwarded_for\" $request_time \
     $upstream_response_time",
];
/// The formats of Apache's and nginx's packages. They have no duration, so one is put behind each line
/// to try them.
const TIMELESS: [&str; 3] = [
    "%h %l %u %t \"%r\" %>s %b",
    "%h %l %u %t \"%r\" %>s %b \"%{Referer}i\" \"%{User-Agent}i\"",
    "%v:%p %h %l %u %t \"%r\" %>s %O \"%{Referer}i\" \"%{User-Agent}i\"",
];
/// Lines after which a duration that never reached a millisecond is doubted.
const DOUBTED_AFTER: usize = 20;
const MS: u64 = 1_000_000;

/// How the lines of a log are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Format(FormatKind);

#[derive(Clone, Debug, PartialEq, Eq)]
enum FormatKind {
    Template(Box<Template>),
    HaProxy,
    Json,
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(Self(match text {
            "haproxy" => FormatKind::HaProxy,
            "json" => FormatKind::Json,
            _ => FormatKind::Template(Box::new(Template::new(text)?)),
        }))
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            FormatKind::Template(template) => write!(f, "`{}`", template.given()),
            FormatKind::HaProxy => f.write_str("a log of HAProxy"),
            FormatKind::Json => f.write_str("JSON with the names of nginx's variables"),
        }
    }
}

impl Format {
    fn read<'a>(&self, line: &'a [u8]) -> Option<LoggedRequest<'a>> {
        match &self.0 {
            FormatKind::Template(template) => template.read(line),
            FormatKind::HaProxy => haproxy::read(line),
            FormatKind::Json => json::read(line),
        }
    }

    /// The format that reads most of these lines.
    fn found(lines: &[Vec<u8>]) -> Option<Self> {
        let templates = USUAL.iter().map(|usual| {
            let template = Template::new(usual).expect("a usual format is one");
            FormatKind::Template(Box::new(template))
        });
        let mut best = (0, None);
        for kind in [FormatKind::HaProxy, FormatKind::Json]
            .into_iter()
            .chain(templates)
        {
            let format = Self(kind);
            let read = lines.iter().filter(|line| format.read(line).is_some());
            let read = read.count();
            if read > best.0 {
                best = (read, Some(format));
            }
        }
        best.1
    }

    /// Whether the last number of each line may be no microseconds.
    fn is_doubted(&self, lines: &[Vec<u8>]) -> bool {
        let FormatKind::Template(template) = &self.0 else {
            return false;
        };
        let requests: Vec<_> = lines.iter().filter_map(|line| self.read(line)).collect();
        let is_short = |request: &LoggedRequest<'_>| request.ended - request.arrived < MS;
        template.ends_with_microseconds()
            && requests.len() >= DOUBTED_AFTER
            && requests.iter().all(is_short)
    }
}

/// Reasons why a log cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unfit {
    /// sdkserver's own log.
    SdkServer,
    /// A usual format without durations.
    NoDurations,
    /// Durations that may be in another unit.
    Doubted,
    /// Whole seconds, and calls that take less than what that leaves open.
    TooCoarse(u64, u64),
    /// No format reads it: its first line, if it may be shown.
    Unknown(Option<String>),
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const PAGE: &str = "docs/how-to/before-you-install.md";
        match self {
            Self::SdkServer => write!(
                f,
                "this is sdkserver's own log. It does not say when a call starts and ends: at INFO it has \
                 neither, and at DEBUG whole seconds beside arguments with passwords. Let the Apache in \
                 front of sdkwsgi log the calls: LogFormat \"%{{usec}}t %D %>s %m %U %a\" tidegate ({PAGE})"
            ),
            Self::NoDurations => write!(
                f,
                "its lines do not say how long a request took. Apache: add %D to LogFormat. nginx: add \
                 $request_time to log_format. {PAGE} has the lines to add"
            ),
            Self::Doubted => f.write_str(
                "the last number of each line is below 1000, so it is probably no %D, which has \
                 microseconds. Name the format with --log-format, such as --log-format '… %{ms}T'",
            ),
            Self::TooCoarse(open, took) => write!(
                f,
                "its times have whole seconds, and half of its calls take less than {}. The order of the \
                 lines leaves {} open, so nothing shows which calls ran at once. Log %{{usec}}t \
                 (Apache) or $msec (nginx): {PAGE}",
                ms(*took),
                ms(*open)
            ),
            Self::Unknown(line) => {
                f.write_str(
                    "no known format reads its lines. Known are Tidegate's access log in JSON, Apache, \
                     nginx and HAProxy; name another LogFormat or log_format with --log-format",
                )?;
                match line {
                    Some(line) => write!(f, ". The first line: {line}"),
                    None => f.write_str(". Its first line is not shown: it may hold a secret"),
                }
            }
        }
    }
}

fn ms(ns: u64) -> String {
    format!("{} ms", ns.div_ceil(MS))
}

/// The calls of one log.
#[derive(Debug)]
pub(super) struct Foreign {
    format: Format,
    behind: Behind,
    samples: Vec<Sample>,
    is_whole: bool,
    /// Requests in which the backend had no part, or that meet no limit.
    passed_over: u64,
    unread: u64,
    beyond: u64,
    /// The number and the text of the first line that cannot be read.
    first_unread: Option<(u64, Option<String>)>,
}

/// Calls read from a log of another program.
#[derive(Debug)]
pub(super) struct Calls {
    pub(super) samples: Vec<Sample>,
    pub(super) beyond: u64,
    pub(super) notes: Vec<String>,
}

impl Foreign {
    /// Decides by the first lines how a log is read.
    ///
    /// # Errors
    ///
    /// What it lacks.
    pub(super) fn of(lines: &[Vec<u8>], given: Option<&Format>) -> Result<Self, Unfit> {
        if lines.iter().any(|line| is_sdkserver(line)) {
            return Err(Unfit::SdkServer);
        }
        let format = match given {
            Some(format) => format.clone(),
            None => {
                let format = Format::found(lines).ok_or_else(|| lacks(lines))?;
                if format.is_doubted(lines) {
                    return Err(Unfit::Doubted);
                }
                format
            }
        };
        let requests: Vec<_> = lines.iter().filter_map(|line| format.read(line)).collect();
        if requests.is_empty() {
            return Err(Unfit::Unknown(lines.first().and_then(|line| shown(line))));
        }
        Ok(Self {
            behind: Behind::of(requests.iter()),
            format,
            samples: Vec::new(),
            is_whole: false,
            passed_over: 0,
            unread: 0,
            beyond: 0,
            first_unread: None,
        })
    }

    /// Takes a line. Returns whether it could be read.
    pub(super) fn take(&mut self, line: &[u8], number: u64, names: &mut NamePool) -> bool {
        let Some(request) = self.format.read(line) else {
            if self.first_unread.is_none() {
                self.first_unread = Some((number, shown(line)));
            }
            self.unread += 1;
            return false;
        };
        self.is_whole |= request.is_whole;
        if self.samples.len() >= CALLS_MAX {
            self.beyond += 1;
            return true;
        }
        match names.sample(&request, self.behind) {
            Some(sample) => self.samples.push(sample),
            None => self.passed_over += 1,
        }
        true
    }

    /// Whether its paths are those of the z/VM SDK server.
    pub(super) fn is_zvm(&self) -> bool {
        self.behind == Behind::Zvm
    }

    /// All calls, with instants finer than the log's.
    ///
    /// # Errors
    ///
    /// If the log's times are too coarse.
    pub(super) fn complete(mut self, seed: u64) -> Result<Calls, Unfit> {
        let mut notes = vec![format!(
            "read as {}{}",
            self.format,
            match self.behind {
                Behind::Zvm => "; its paths are those of the z/VM SDK server",
                Behind::Other => "",
            }
        )];
        if self.is_whole {
            let blur = spread(&mut self.samples, seed);
            if blur.hides_concurrency() {
                return Err(Unfit::TooCoarse(blur.open, blur.took));
            }
            let Blur { open, took } = blur;
            notes.push(format!(
                "its times have whole seconds: by the order of the lines, half of the calls are known to \
                 {}, and half take {} or more",
                ms(open),
                ms(took)
            ));
        }
        if self.passed_over > 0 {
            notes.push(format!(
                "{} requests are left out: they did not reach the backend, or meet no limit there",
                self.passed_over
            ));
        }
        if let Some((number, line)) = self.first_unread {
            let text = line.unwrap_or_else(|| "not shown, it may hold a secret".to_owned());
            notes.push(format!(
                "{} lines cannot be read, first line {number}: {text}",
                self.unread
            ));
        }
        Ok(Calls {
            samples: self.samples,
            beyond: self.beyond,
            notes,
        })
    }
}

/// Why no format reads these lines.
fn lacks(lines: &[Vec<u8>]) -> Unfit {
    let timeless = TIMELESS.map(|usual| {
        let with_duration = format!("{usual} %D");
        Template::new(&with_duration).expect("a usual format is one")
    });
    let fits = |line: &Vec<u8>| {
        let with_duration = [&**line, b" 1"].concat();
        timeless.iter().any(|it| it.read(&with_duration).is_some())
    };
    match lines.iter().any(fits) {
        true => Unfit::NoDurations,
        false => Unfit::Unknown(lines.first().and_then(|line| shown(line))),
    }
}
