//! What the texts of the config mean: addresses, names, paths, log levels, secrets.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tidegate_callers::{Network, NetworkError};
use tracing_subscriber::filter::Targets;

use crate::admin::Token;
use crate::call::Bind;
use crate::forward::Address;
use crate::protocol::trusted::TrustedProxies;

use super::nearest::nearest;
use super::per_window::function_name;
use super::problem::Place;
use super::tree::{Value, quoted};
use super::value::{Kind, Mistake, duration, text};

/// Longest path of a socket file: what the kernel has room for, without the byte that ends
/// it.   bytes
const SOCKET_PATH_MAX: usize = 107;
/// Most entries in a list of proxies; each address that is forwarded is compared with them.
const PROXIES_MAX: usize = 256;

/// An address to listen on, or the path of a socket file.
pub(super) fn bind() -> Kind<Bind> {
    text(
        "address:port, or unix:/path of a socket file",
        "127.0.0.1:8081",
        |given| match given.trim().strip_prefix("unix:") {
            Some(path) => socket_path(given, path),
            None if given.starts_with('/') => Err(Mistake::new(
                format!("{} is a path", quoted(given)),
                format!(
                    "write {} for a socket file",
                    quoted(&format!("unix:{given}"))
                ),
            )),
            None => bind_address(given).map(Bind::Tcp),
        },
    )
}

fn socket_path(given: &str, path: &str) -> Result<Bind, Mistake> {
    let wrong =
        |message: &str, cure: &str| Err(Mistake::new(format!("{} {message}", quoted(given)), cure));
    if !path.starts_with('/') || path.ends_with('/') {
        return wrong(
            "is not the whole path of a file",
            "write it from /, such as unix:/run/tidegate/nova.sock",
        );
    }
    if path.contains('\0') {
        return wrong("holds a NUL byte", "give a path that can be one");
    }
    if path.len() > SOCKET_PATH_MAX {
        return wrong(
            "is longer than a socket's path can be",
            "give a path of at most 107 bytes, such as unix:/run/tidegate/nova.sock",
        );
    }
    Ok(Bind::Unix(Path::new(path).into()))
}

/// The permissions of a file.
pub(super) fn file_mode() -> Kind<u32> {
    text("\"0000\" to \"0777\", in octal", "0660", |given| {
        let is_octal = |byte: u8| matches!(byte, b'0'..=b'7');
        let mode = (matches!(given.len(), 3 | 4) && given.bytes().all(is_octal))
            .then(|| u32::from_str_radix(given, 8).ok())
            .flatten();
        match mode {
            Some(mode @ 0..=0o777) => Ok(mode),
            _ => Err(Mistake::new(
                format!("{} is no mode of a file", quoted(given)),
                "give it in octal, as chmod takes it, such as \"0660\"",
            )),
        }
    })
}

/// The path of a file to read.
pub(super) fn file() -> Kind<PathBuf> {
    text("the path of a PEM file", "/etc/tidegate/tls.crt", |given| {
        if given.is_empty() || given.contains('\0') {
            return Err(Mistake::new(
                format!("{} is no path", quoted(given)),
                "give the path of a PEM file, such as \"/etc/tidegate/tls.crt\"",
            ));
        }
        Ok(PathBuf::from(given))
    })
}

/// The path of a file that is written.
pub(super) fn state_file() -> Kind<PathBuf> {
    const EXAMPLE: &str = "/var/lib/tidegate/callers.json";
    text("the whole path of a file", EXAMPLE, |given| {
        if !given.starts_with('/') || given.ends_with('/') || given.contains('\0') {
            return Err(Mistake::new(
                format!("{} is not the whole path of a file", quoted(given)),
                format!("write it from /, such as {}", quoted(EXAMPLE)),
            ));
        }
        Ok(PathBuf::from(given))
    })
}

/// Proxies that are believed.
pub(super) fn proxies() -> Kind<TrustedProxies> {
    const EXAMPLE: &str = "give addresses and networks in quotes, such as \
                           [\"127.0.0.1/32\", \"10.0.0.0/8\"], or \"unix\"";
    Kind {
        allowed: "a list of addresses, networks as address/prefix, or \"unix\"".to_owned(),
        read: Box::new(|node| {
            let Value::List(list) = &node.value else {
                let told = format!("{} is not an array", node.told());
                return Err(Mistake::new(told, EXAMPLE));
            };
            if list.len() > PROXIES_MAX {
                let told = format!("there are {} of them", list.len());
                return Err(Mistake::new(told, format!("give at most {PROXIES_MAX}")));
            }
            let mut networks = Vec::new();
            let mut unix = false;
            for item in list {
                match item.text() {
                    Some("unix") => unix = true,
                    Some(text) => networks.push(network(text)?),
                    None => {
                        let told = format!("{} is not a string", item.told());
                        return Err(Mistake::new(told, EXAMPLE));
                    }
                }
            }
            Ok(TrustedProxies {
                networks: networks.into(),
                unix,
            })
        }),
    }
}

fn network(given: &str) -> Result<Network, Mistake> {
    given.trim().parse().map_err(|error| match error {
        NetworkError::HostBitsSet(network) => Mistake::new(
            format!("{} has bits behind its prefix", quoted(given)),
            format!("did you mean {}?", quoted(&network.to_string())),
        ),
        NetworkError::NotAnAddress => Mistake::new(
            format!("{} is neither an address nor a network", quoted(given)),
            "write it as 192.0.2.1, 10.0.0.0/8, 2001:db8::/32, or unix",
        ),
        NetworkError::PrefixLength { max } => Mistake::new(
            format!("{} has no prefix length from 0 to {max}", quoted(given)),
            "write it as 192.0.2.1, 10.0.0.0/8, 2001:db8::/32, or unix",
        ),
    })
}

/// An address to listen on, or `""` or `false` for none.
pub(super) fn bind_or_off() -> Kind<Option<SocketAddr>> {
    let inner = text("address:port", "127.0.0.1:9180", |given| {
        if given.is_empty() {
            return Ok(None);
        }
        bind_address(given).map(Some)
    });
    Kind {
        allowed: "address:port, or \"\" or false for none".to_owned(),
        read: Box::new(move |node| match node.value {
            Value::Boolean(false) => Ok(None),
            _ => (inner.read)(node),
        }),
    }
}

fn bind_address(given: &str) -> Result<SocketAddr, Mistake> {
    if let Ok(address) = given.trim().parse() {
        return Ok(address);
    }
    let wrong = |message: &str, cure: String| {
        Err(Mistake::new(format!("{} {message}", quoted(given)), cure))
    };
    if given.trim().parse::<IpAddr>().is_ok() {
        return wrong(
            "has no port",
            "write it as address:port, such as 127.0.0.1:8081".into(),
        );
    }
    let port = given
        .rsplit(':')
        .next()
        .and_then(|port| port.trim().parse::<u16>().ok());
    match (port, given.split_once(':').map(|(host, _)| host)) {
        (Some(port), None | Some("" | "localhost")) => wrong(
            "is not an address with a port",
            format!(
                "write \"127.0.0.1:{port}\" for this machine only, or \"0.0.0.0:{port}\" for all its addresses"
            ),
        ),
        (Some(_), Some(_)) => wrong(
            "is not an address with a port",
            "give a numeric address of this machine, such as 127.0.0.1:8081 or [::1]:8081".into(),
        ),
        (None, _) => wrong(
            "is not an address with a port",
            "write it as address:port, such as 127.0.0.1:8081, with a port up to 65535".into(),
        ),
    }
}

/// Where a backend listens: `host:port`.
pub(super) fn address(example: &'static str) -> Kind<Address> {
    text("host:port", example, move |given| {
        host_and_port(given, None, example)
    })
}

/// Where the socket backend listens: `host:port` or a socket file.
pub(super) fn socket_address() -> Kind<Address> {
    const EXAMPLE: &str = "127.0.0.1:2001";
    text(
        "host:port, or unix:/path of a socket file",
        EXAMPLE,
        |given| match given.trim().strip_prefix("unix:") {
            Some(path) => unix_address(given, path),
            None => host_and_port(given, None, EXAMPLE),
        },
    )
}

fn unix_address(given: &str, path: &str) -> Result<Address, Mistake> {
    socket_path(given, path)?;
    Ok(Address::Unix(Path::new(path).into()))
}

/// Where an HTTP backend listens: `http://host:port` or a socket file.
pub(super) fn http_address() -> Kind<Address> {
    const EXAMPLE: &str = "http://127.0.0.1:8080";
    text(
        "http://host:port, or unix:/path of a socket file",
        EXAMPLE,
        |given| {
            if let Some(path) = given.trim().strip_prefix("unix:") {
                return unix_address(given, path);
            }
            let wrong = |message: &str, cure: &str| {
                Err(Mistake::new(format!("{} {message}", quoted(given)), cure))
            };
            if given.starts_with("https://") {
                return wrong(
                    "asks for TLS, which can't be spoken to a backend yet",
                    "give http://host:port, with TLS ended in front of the backend or not at all",
                );
            }
            let Some(rest) = given.trim().strip_prefix("http://") else {
                return wrong(
                    "does not begin with http://",
                    "write it as http://host:port",
                );
            };
            let host = rest.strip_suffix('/').unwrap_or(rest);
            if host.contains(['/', '?', '#']) {
                return wrong(
                    "has a path, and the path is the client's",
                    "write it as http://host:port and nothing after the port",
                );
            }
            if host.contains('@') {
                // Told without its value: it may hold a password.
                return Err(Mistake::new(
                    "the address holds a user name",
                    "write it as http://host:port; the client's own headers pass through",
                ));
            }
            host_and_port(host, Some(80), EXAMPLE)
        },
    )
}

pub(super) fn host_and_port(
    given: &str,
    port_usual: Option<u16>,
    example: &str,
) -> Result<Address, Mistake> {
    let wrong = |message: &str| {
        let cure = format!("write it as {}", quoted(example));
        Mistake::new(format!("{} {message}", quoted(given)), cure)
    };
    let given = given.trim();
    if let Ok(ip) = given.parse::<Ipv6Addr>() {
        let cure = format!("write an IPv6 address in brackets: \"[{ip}]:2001\"");
        return Err(Mistake::new(format!("{} has no port", quoted(given)), cure));
    }
    let (host, port) = match given.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => {
            let port = port.parse().ok().filter(|port| *port > 0);
            (
                host,
                port.ok_or_else(|| wrong("has no port from 1 to 65535"))?,
            )
        }
        _ => (given, port_usual.ok_or_else(|| wrong("has no port"))?),
    };
    if let Some(inner) = host.strip_prefix('[') {
        let ip = inner
            .strip_suffix(']')
            .and_then(|ip| ip.parse::<Ipv6Addr>().ok());
        let ip = ip.ok_or_else(|| wrong("is not an IPv6 address in brackets"))?;
        return Ok(Address::Ip(SocketAddr::from((ip, port))));
    }
    if let Ok(ip) = host.parse::<IpAddr>() {
        if ip.is_ipv6() {
            return Err(wrong("is an IPv6 address without brackets"));
        }
        return Ok(Address::Ip(SocketAddr::from((ip, port))));
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    if host.is_empty() || host.len() > 253 || !host.chars().all(plain) {
        return Err(wrong("has no host that could be looked up"));
    }
    // Nobody's host is called 300.1.2.3: a name that ends in digits was meant as an address.
    let last = host.trim_end_matches('.').rsplit('.').next();
    if last.is_none_or(|label| label.is_empty() || label.bytes().all(|b| b.is_ascii_digit())) {
        return Err(wrong("is neither an address nor a name"));
    }
    Ok(Address::Name(host.into(), port))
}

/// The name of a listener: a label of metrics.
pub(super) fn name() -> Kind<String> {
    text("1 to 64 letters, digits, _, - or .", "nova", |given| {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        if given.is_empty() || given.len() > 64 || !given.chars().all(plain) {
            return Err(Mistake::new(
                format!("{} can't be a name", quoted(given)),
                "give 1 to 64 letters, digits, \"_\", \"-\" or \".\", such as \"nova\"",
            ));
        }
        Ok(given.to_owned())
    })
}

/// An HTTP method, or `*`.
pub(super) fn method() -> Kind<String> {
    text("a method in capitals, or *", "GET", |given| {
        let capitals = given.bytes().all(|b| b.is_ascii_uppercase() || b == b'-');
        if given == "*" || (capitals && (1..=32).contains(&given.len())) {
            return Ok(given.to_owned());
        }
        let upper = given.to_ascii_uppercase();
        let cure = if !upper.is_empty() && upper.bytes().all(|b| b.is_ascii_uppercase()) {
            format!("methods are written in capitals: {}", quoted(&upper))
        } else {
            "give one method such as \"GET\", or \"*\" for all".to_owned()
        };
        Err(Mistake::new(
            format!("{} is not a method", quoted(given)),
            cure,
        ))
    })
}

/// A path with `{…}` for any one segment.
pub(super) fn path() -> Kind<String> {
    text(
        "a path from /, {name} for any one segment",
        "/guests/{userid}",
        |given| {
            const CURE: &str =
                "write it as \"/guests/{userid}/info\", with {…} for any one segment";
            let wrong = |message: &str| Mistake::new(format!("{} {message}", quoted(given)), CURE);
            if !given.starts_with('/') {
                return Err(wrong("does not begin with /"));
            }
            if given.contains(['?', '#']) {
                return Err(wrong(
                    "has a query, and routes are told apart by their path",
                ));
            }
            if given.len() > 1024 || !given.bytes().all(|b| b.is_ascii_graphic()) {
                return Err(wrong("holds what no path holds"));
            }
            for segment in given
                .split('/')
                .filter(|segment| segment.contains(['{', '}']))
            {
                let inner = segment
                    .strip_prefix('{')
                    .and_then(|rest| rest.strip_suffix('}'));
                if inner.is_none_or(|inner| inner.is_empty() || inner.contains(['{', '}'])) {
                    return Err(wrong(
                        "has braces around less or more than one whole segment",
                    ));
                }
            }
            Ok(given.to_owned())
        },
    )
}

/// The function of a route; empty for none.
pub(super) fn route_function() -> Kind<Option<String>> {
    text("a function name, or \"\" for none", "guest_list", |given| {
        if given.is_empty() {
            return Ok(None);
        }
        function_name(given)?;
        if given == "total" {
            return Err(Mistake::new(
                "\"total\" stands for all functions together",
                "give the route a function name of its own, or \"\" for none",
            ));
        }
        Ok(Some(given.to_owned()))
    })
}

/// Names of functions, each with where it stands.
pub(super) fn function_names(max: usize) -> Kind<Vec<(String, Place)>> {
    const EXAMPLE: &str = "give names in brackets, such as [\"host_get_info\", \"guest_list\"]";
    Kind {
        allowed: format!("up to {max} function names in brackets"),
        read: Box::new(move |node| {
            let Value::List(list) = &node.value else {
                let told = format!("{} is not an array", node.told());
                return Err(Mistake::new(told, EXAMPLE));
            };
            if list.len() > max {
                let told = format!("there are {} functions", list.len());
                return Err(Mistake::new(told, format!("give at most {max}")));
            }
            let mut names: Vec<(String, Place)> = Vec::new();
            for item in list {
                let Some(name) = item.text() else {
                    let told = format!("{} is not a string", item.told());
                    return Err(Mistake::new(told, EXAMPLE));
                };
                function_name(name)?;
                if names.iter().any(|(other, _)| other == name) {
                    let told = format!("{} is given twice", quoted(name));
                    return Err(Mistake::new(told, "leave one of the two out"));
                }
                names.push((name.to_owned(), item.place.clone()));
            }
            Ok(names)
        }),
    }
}

/// A log level, or a filter by module.
pub(super) fn level() -> Kind<String> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    text(
        "off, error, warn, info, debug, trace, or a filter",
        "info",
        |given| {
            let wrong = |word: &str| {
                let cure = match nearest(word, LEVELS) {
                    Some(level) => format!("did you mean {}?", quoted(level)),
                    None => format!(
                        "give one of {}, or a filter such as \"info,tidegate=debug\"",
                        LEVELS.join(", ")
                    ),
                };
                Mistake::new(format!("{} is not a log level", quoted(word)), cure)
            };
            if given.len() > 1024 {
                return Err(wrong(given));
            }
            for directive in given.split(',') {
                let word = directive.rsplit('=').next().unwrap_or_default().trim();
                if !LEVELS.contains(&word) {
                    return Err(wrong(word));
                }
            }
            if given.parse::<Targets>().is_err() {
                return Err(wrong(given));
            }
            Ok(given.to_owned())
        },
    )
}

/// A secret. It stands in no message.
pub(super) fn token() -> Kind<Token> {
    const LETTERS: RangeInclusive<usize> = 1..=1024;
    let wrong = |message: &str| {
        Mistake::new(
            message,
            "give 1 to 1024 letters, digits or signs in quotes, without spaces, such as the output of `openssl rand -hex 32`",
        )
    };
    Kind {
        allowed: "1 to 1024 visible ASCII characters".to_owned(),
        read: Box::new(move |node| {
            let given = node
                .text()
                .ok_or_else(|| wrong("the token is not a string"))?;
            if given.is_empty() {
                return Err(wrong("the token is empty"));
            }
            if !LETTERS.contains(&given.len()) || !given.bytes().all(|b| b.is_ascii_graphic()) {
                return Err(wrong("the token holds what an HTTP header can't carry"));
            }
            Ok(Token(given.into()))
        }),
    }
}

/// Two durations, from and to.
pub(super) fn jitter(range: RangeInclusive<Duration>) -> Kind<(Duration, Duration)> {
    const EXAMPLE: &str = "give two durations, such as [\"1s\", \"3s\"]";
    let one = duration(range);
    Kind {
        allowed: format!("two durations, {}", one.allowed),
        read: Box::new(move |node| {
            let Value::List(list) = &node.value else {
                let told = format!("{} is not an array", node.told());
                return Err(Mistake::new(told, EXAMPLE));
            };
            let [from, to] = list.as_slice() else {
                let told = format!("there are {} durations", list.len());
                return Err(Mistake::new(told, EXAMPLE));
            };
            let (from, to) = ((one.read)(from)?, (one.read)(to)?);
            if from > to {
                return Err(Mistake::new(
                    "the first is longer than the second",
                    "swap them: the shortest time comes first",
                ));
            }
            Ok((from, to))
        }),
    }
}
