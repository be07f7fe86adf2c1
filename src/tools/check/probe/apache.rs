//! How long an Apache on this machine waits for an answer, against how long a call may wait here.
//!
//! Apache in front of the sidecar gives up after `Timeout`, 60 seconds by default, and answers its
//! client with a page of its own while the call still waits. Which virtual host leads to the sidecar
//! is only known where it says `ProxyPass` to its port. So in front of sdkserver the shortest time of
//! all counts, and an HTTP listener is compared only with what leads to its port.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Finding;
use super::kinds::APACHE;
use crate::admit::ClassDeadline;
use crate::call::Protocol;
use crate::config::{self, Config};

/// Where distributions keep the main file.
const MAIN: [&str; 3] = [
    "etc/apache2/apache2.conf",
    "etc/httpd/conf/httpd.conf",
    "etc/apache2/httpd.conf",
];
/// The time that Apache waits without `Timeout`.
const DEFAULT: Duration = Duration::from_secs(60);
/// The time that a call needs beyond its wait.
const CALL: Duration = Duration::from_secs(10);
/// The other name of `max_wait`, whose value is a number of seconds.
const OLD_NAME: &str = "smapi_request_postpone_threshold_seconds";
/// The most files that are read, and the largest.
const FILES_MAX: usize = 500;
const BYTES_MAX: u64 = 1 << 20;

/// How long something waits, and where that is written.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Time {
    directive: String,
    length: Duration,
    /// File and line, as on the machine.
    place: String,
}

/// Settings in all files of an Apache.
#[derive(Debug, Default)]
struct ApacheSettings {
    /// The main file.
    main: String,
    timeouts: Vec<Time>,
    proxy_timeouts: Vec<Time>,
    /// `ProxyPass` by the port that it leads to, with its own timeout if it has one.
    proxies: Vec<(Option<u16>, Option<Time>)>,
    /// Options of `WSGIDaemonProcess`.
    wsgi: Vec<Time>,
}

/// A finding, if a client may come to the sidecar through an Apache.
pub(super) fn check(root: &Path, config: &Config) -> Finding {
    let is_s = |listener: &crate::call::Listener| {
        matches!(listener.protocol, Protocol::Auto | Protocol::Socket)
    };
    let listeners = &config.listen.listeners;
    let has_table = config.classify.kind.has_table();
    // sdkwsgi, which runs in Apache, is a client of sdkserver.
    let any = has_table && config.forward.socket.is_some() && listeners.iter().any(is_s);
    let tcp = listeners.iter().filter_map(|listener| listener.bind.tcp());
    let ports: Vec<u16> = tcp.map(|address| address.port()).collect();
    let is_old_name = config::effective(config).contains(OLD_NAME);
    match read(root) {
        Some(found) => compare(&found, any, &ports, longest_wait(config), is_old_name),
        None => APACHE.skipped("apache", "no config of an Apache on this machine"),
    }
}

/// How long a call may wait here, except those that may wait until they are served.
fn longest_wait(config: &Config) -> Duration {
    let admit = &config.admit;
    let classes = admit
        .classes
        .iter()
        .filter_map(|class| match class.deadline {
            ClassDeadline::After(length) => Some(length),
            ClassDeadline::Ordinary | ClassDeadline::Never => None,
        });
    classes.fold(admit.max_wait, Duration::max)
}

fn compare(
    found: &ApacheSettings,
    any: bool,
    ports: &[u16],
    wait: Duration,
    is_old_name: bool,
) -> Finding {
    let Some(shortest) = found.shortest(any, ports) else {
        let found = format!("{} does not lead to this sidecar", found.main);
        return APACHE.skipped("apache", found);
    };
    let Time {
        directive,
        length,
        place,
    } = shortest;
    let (length, waits) = (length.as_secs(), wait.as_secs());
    let text = format!("waits {length} s, and a call may wait {waits} s here");
    if wait + CALL <= Duration::from_secs(length) {
        return APACHE.ok("apache", text);
    }
    let needed = wait + CALL;
    let lower = length.saturating_sub(CALL.as_secs());
    let first = match lower {
        0 => String::new(),
        _ if is_old_name => format!("set {OLD_NAME} = {lower} or less in [limits], or "),
        _ => format!("set max_wait = \"{lower}s\" or less in [limits], or "),
    };
    APACHE.warning(
        "apache",
        text,
        format!(
            "{directive} ({place}) ends a call that waits, and its client gets a page of Apache \
             instead of an answer"
        ),
        format!(
            "{first}set {directive} to {} or more and reload Apache",
            needed.as_secs()
        ),
    )
}

impl ApacheSettings {
    /// The shortest time of what leads to the sidecar.
    fn shortest(&self, any: bool, ports: &[u16]) -> Option<Time> {
        let least = |times: &[Time]| times.iter().min_by_key(|time| time.length).cloned();
        let timeout = least(&self.timeouts).unwrap_or_else(|| Time {
            directive: "Timeout".to_owned(),
            length: DEFAULT,
            place: format!("not set in {}, so 60 s", self.main),
        });
        let of_proxies = least(&self.proxy_timeouts).unwrap_or_else(|| timeout.clone());
        let leads_here = |port: Option<u16>| port.is_some_and(|port| ports.contains(&port));
        let proxies = self.proxies.iter();
        let proxies = proxies.filter(|(port, _)| any || leads_here(*port));
        let mut times: Vec<Time> = proxies
            .map(|(_, own)| own.clone().unwrap_or_else(|| of_proxies.clone()))
            .collect();
        if any {
            times.extend(self.wsgi.iter().cloned());
            if self.proxies.is_empty() {
                times.push(timeout);
            }
        }
        least(&times)
    }
}

/// Reads the files of an Apache; none if there is none.
fn read(root: &Path) -> Option<ApacheSettings> {
    let main = MAIN
        .iter()
        .map(|main| root.join(main))
        .find(|main| main.is_file())?;
    let mut reader = Reader {
        root,
        server_root: main.parent()?.to_owned(),
        found: ApacheSettings {
            main: shown(root, &main),
            ..ApacheSettings::default()
        },
        files: 0,
    };
    // Red Hat's main file is one folder below.
    if reader.server_root.ends_with("conf") {
        reader.server_root.pop();
    }
    reader.file(&main);
    Some(reader.found)
}

/// A path as on the machine itself.
fn shown(root: &Path, path: &Path) -> String {
    let inside = path.strip_prefix(root).unwrap_or(path);
    Path::new("/").join(inside).display().to_string()
}

struct Reader<'a> {
    root: &'a Path,
    server_root: PathBuf,
    found: ApacheSettings,
    files: usize,
}

impl Reader<'_> {
    fn file(&mut self, path: &Path) {
        let is_small = path
            .metadata()
            .is_ok_and(|it| it.is_file() && it.len() <= BYTES_MAX);
        if self.files >= FILES_MAX || !is_small {
            return;
        }
        self.files += 1;
        let bytes = fs::read(path).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let mut before = String::new();
        for (number, line) in text.lines().enumerate() {
            if let Some(begin) = line.strip_suffix('\\') {
                before.push_str(begin);
                continue;
            }
            let whole = std::mem::take(&mut before) + line;
            let words = words(&whole);
            let place = format!("{}:{}", shown(self.root, path), number + 1);
            if let Some((directive, arguments)) = words.split_first() {
                self.directive(&directive.to_ascii_lowercase(), arguments, &place);
            }
        }
    }

    fn directive(&mut self, name: &str, arguments: &[String], place: &str) {
        let time = |directive: &str, text: &str| {
            let length = length(text).filter(|length| !length.is_zero())?;
            let (directive, place) = (directive.to_owned(), place.to_owned());
            Some(Time {
                directive,
                length,
                place,
            })
        };
        let options = || arguments.iter().filter_map(|it| it.split_once('='));
        let first = arguments.first().map_or("", String::as_str);
        match name {
            "timeout" => self.found.timeouts.extend(time("Timeout", first)),
            "proxytimeout" => self
                .found
                .proxy_timeouts
                .extend(time("ProxyTimeout", first)),
            "proxypass" | "proxypassmatch" | "balancermember" => {
                let target = arguments.iter().find(|it| it.contains("://"));
                let port = target.and_then(|target| port(target));
                let mut own = options().filter(|(key, _)| *key == "timeout");
                let own = own
                    .next()
                    .and_then(|(_, value)| time("timeout= of ProxyPass", value));
                // What does not lead to a server, such as `!`.
                if target.is_some_and(|target| !target.starts_with("balancer:")) {
                    self.found.proxies.push((port, own));
                }
            }
            "wsgidaemonprocess" => {
                for (key, value) in options() {
                    if ["request-timeout", "queue-timeout", "socket-timeout"].contains(&key) {
                        let directive = format!("{key}= of WSGIDaemonProcess");
                        self.found.wsgi.extend(time(&directive, value));
                    }
                }
            }
            "serverroot" => self.server_root = self.absolute(first),
            "include" | "includeoptional" => {
                for file in self.files_of(first) {
                    self.file(&file);
                }
            }
            _ => {}
        }
    }

    fn absolute(&self, path: &str) -> PathBuf {
        match path.strip_prefix('/') {
            Some(inside) => self.root.join(inside),
            None => self.server_root.join(path),
        }
    }

    /// The files of an `Include`, whose segments may have `*` and `?`. A folder means all that is in it.
    fn files_of(&self, pattern: &str) -> Vec<PathBuf> {
        let (base, rest) = match pattern.strip_prefix('/') {
            Some(inside) => (self.root.to_owned(), inside),
            None => (self.server_root.clone(), pattern),
        };
        let mut found = vec![base];
        for segment in rest.split('/').filter(|segment| !segment.is_empty()) {
            let next = found
                .iter()
                .flat_map(|folder| match segment.contains(['*', '?']) {
                    false => vec![folder.join(segment)],
                    true => entries(folder, segment),
                });
            found = next.take(FILES_MAX).collect();
        }
        let all = |path: PathBuf| match path.is_dir() {
            true => entries(&path, "*"),
            false => vec![path],
        };
        found.into_iter().flat_map(all).take(FILES_MAX).collect()
    }
}

/// Lists the entries of a folder that match a pattern, by name.
fn entries(folder: &Path, pattern: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries
        .filter(|it| {
            it.file_name()
                .to_str()
                .is_some_and(|name| fits(pattern, name))
        })
        .map(|it| it.path())
        .collect();
    paths.sort();
    paths
}

/// Whether a name fits a pattern with `*` for any letters and `?` for one.
fn fits(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), name.chars().collect());
    // Where the pattern continues if the latest `*` takes one letter more.
    let (mut at, mut of, mut star) = (0, 0, None);
    while of < name.len() {
        match pattern.get(at) {
            Some('*') => {
                star = Some((at + 1, of));
                at += 1;
            }
            Some(&letter) if letter == '?' || letter == name[of] => {
                at += 1;
                of += 1;
            }
            _ => match star {
                Some((after, taken)) => {
                    star = Some((after, taken + 1));
                    at = after;
                    of = taken + 1;
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|letter| *letter == '*')
}

/// The words of a line: its directive and its arguments, without quotes. None of a comment.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    let line = line.trim();
    if line.starts_with('#') {
        return words;
    }
    for letter in line.chars() {
        match quote {
            Some(open) if letter == open => quote = None,
            Some(_) => word.push(letter),
            None if letter == '"' || letter == '\'' => quote = Some(letter),
            None if letter.is_whitespace() => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
            }
            None => word.push(letter),
        }
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

/// A length of time: seconds, or with a unit.
fn length(text: &str) -> Option<Duration> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let number: u64 = text[..digits].parse().ok()?;
    match &text[digits..] {
        "" | "s" => Some(Duration::from_secs(number)),
        "ms" => Some(Duration::from_millis(number)),
        "mi" | "min" => Some(Duration::from_secs(number.checked_mul(60)?)),
        "h" => Some(Duration::from_secs(number.checked_mul(3600)?)),
        _ => None,
    }
}

/// The port that a URL leads to.
fn port(url: &str) -> Option<u16> {
    let (scheme, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?']).next()?;
    match authority.rsplit_once(':') {
        Some((_, port)) if !port.ends_with(']') => port.parse().ok(),
        _ if scheme.eq_ignore_ascii_case("https") => Some(443),
        _ => Some(80),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::check::probe::CheckStatus;

    fn apache(files: &[(&str, &str)]) -> ApacheSettings {
        let root = tempfile::tempdir().expect("a folder");
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, text).expect("written");
        }
        read(root.path()).expect("there is a main file")
    }

    #[track_caller]
    fn check(files: &[(&str, &str)], any: bool, shortest: Option<(&str, u64, &str)>) {
        let found = apache(files).shortest(any, &[8081]);
        let found = found.map(|time| (time.directive, time.length.as_secs(), time.place));
        let expected = shortest.map(|(a, b, c)| (a.to_owned(), b, c.to_owned()));
        assert_eq!(found, expected);
    }

    const DEBIAN: &str = "etc/apache2/apache2.conf";

    #[test]
    fn without_a_directive_it_is_the_default_of_apache() {
        let place = "not set in /etc/apache2/apache2.conf, so 60 s";
        check(
            &[(DEBIAN, "# Timeout 5\n")],
            true,
            Some(("Timeout", 60, place)),
        );
        check(&[(DEBIAN, "")], false, None);
    }

    #[test]
    fn included_files_are_read_in_the_layouts_of_the_distributions() {
        let debian = [
            (
                DEBIAN,
                "Timeout 300\nIncludeOptional sites-enabled/*.conf\nInclude missing\n",
            ),
            (
                "etc/apache2/sites-enabled/sdk.conf",
                "<VirtualHost *:8080>\n  timeout \\\n 45\n",
            ),
            ("etc/apache2/sites-enabled/old.bak", "Timeout 1\n"),
        ];
        let place = "/etc/apache2/sites-enabled/sdk.conf:3";
        check(&debian, true, Some(("Timeout", 45, place)));
        let red_hat = [
            (
                "etc/httpd/conf/httpd.conf",
                "ServerRoot \"/etc/httpd\"\nInclude conf.d/*.conf\n",
            ),
            (
                "etc/httpd/conf.d/zvmsdk.conf",
                "ProxyPass / uwsgi://127.0.0.1:35000/ timeout=30\nProxyPass /x !\n",
            ),
        ];
        let place = "/etc/httpd/conf.d/zvmsdk.conf:1";
        check(&red_hat, true, Some(("timeout= of ProxyPass", 30, place)));
        check(&red_hat, false, None);
    }

    #[test]
    fn an_http_listener_is_compared_with_what_leads_to_its_port() {
        let text = "ProxyTimeout 90\nProxyPass /a http://127.0.0.1:9999/ timeout=5\n\
                    ProxyPass /b http://[::1]:8081/\n";
        let place = "/etc/apache2/apache2.conf:1";
        check(&[(DEBIAN, text)], false, Some(("ProxyTimeout", 90, place)));
        let wsgi = "WSGIDaemonProcess sdk processes=2 request-timeout=20 queue-timeout=45\n";
        check(
            &[(DEBIAN, wsgi)],
            true,
            Some(("request-timeout= of WSGIDaemonProcess", 20, place)),
        );
        check(&[(DEBIAN, wsgi)], false, None);
    }

    #[test]
    fn a_wait_needs_ten_seconds_less_than_apache_gives() {
        let found = apache(&[(DEBIAN, "Timeout 60\n")]);
        let at = |seconds| compare(&found, true, &[], Duration::from_secs(seconds), false);
        assert_eq!(at(50).status, CheckStatus::Ok);
        let finding = at(60);
        assert_eq!(finding.status, CheckStatus::Warning);
        assert_eq!(finding.found, "waits 60 s, and a call may wait 60 s here");
        let cure = "set max_wait = \"50s\" or less in [limits], or set Timeout to 70 or more and \
                    reload Apache";
        assert_eq!(finding.cure.as_deref(), Some(cure));
    }

    #[test]
    fn patterns_and_lengths_are_those_of_apache() {
        for (pattern, name, does) in [
            ("*.conf", "a.conf", true),
            ("*.conf", "a.conf.bak", false),
            ("?-*.load", "1-a.load", true),
            ("*a*b", "xaxxb", true),
            ("*a*b", "xaxxbc", false),
            ("", "", true),
        ] {
            assert_eq!(fits(pattern, name), does, "{pattern} {name}");
        }
        assert_eq!(length("60"), Some(Duration::from_secs(60)));
        assert_eq!(length("500ms"), Some(Duration::from_millis(500)));
        assert_eq!(length("2min"), Some(Duration::from_secs(120)));
        assert_eq!(length("soon"), None);
    }
}
