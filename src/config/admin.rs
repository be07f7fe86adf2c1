//! `[admin]`: where operators look, and which requests are taken there.

use std::net::SocketAddr;

use crate::admin::{Settings, Token, needs_token};

use super::effective::{Toml, quoted as toml_text};
use super::raw::Raw;
use super::reader::{Notes, Section, Setting};
use super::secret;
use super::text::{bind_or_off, token};
use super::tree::{Node, Value, quoted};
use super::value::{Kind, Mistake};

/// Most names that are allowed; each request's `Host` is compared with them.
const HOSTS_MAX: usize = 64;
/// The longest name that DNS has.   bytes
const HOST_MAX: usize = 253;

/// `[admin]`
pub(super) struct RawAdmin {
    pub(super) bind: Setting<Option<SocketAddr>>,
    token: Setting<Option<Token>>,
    allowed_hosts: Setting<Vec<String>>,
}

pub(super) fn read(mut section: Section<'_>) -> RawAdmin {
    let loopback = SocketAddr::from(([127, 0, 0, 1], 9180));
    let admin = RawAdmin {
        bind: section.read("bind", Some(loopback), bind_or_off()),
        token: section.read("token", None, token().optional()),
        allowed_hosts: section.read("allowed_hosts", Vec::new(), hosts()),
    };
    section.finish();
    admin
}

/// Names as `Host` has them, without a port.
pub(super) fn hosts() -> Kind<Vec<String>> {
    const CURE: &str = "give names without scheme and port, such as [\"tidegate.example.com\"]; \
                        an IP address needs no entry";
    let read = |node: &Node| {
        let Value::List(list) = &node.value else {
            let told = format!("{} is not an array", node.told());
            return Err(Mistake::new(told, CURE));
        };
        if list.len() > HOSTS_MAX {
            let told = format!("there are {} of them", list.len());
            return Err(Mistake::new(told, format!("give at most {HOSTS_MAX}")));
        }
        let mut hosts = Vec::new();
        for item in list {
            let Some(text) = item.text() else {
                let told = format!("{} is not a string", item.told());
                return Err(Mistake::new(told, CURE));
            };
            let name = text.strip_suffix('.').unwrap_or(text);
            if !is_name(name) {
                let told = format!("{} is not the name of a host", quoted(text));
                return Err(Mistake::new(told, CURE));
            }
            hosts.push(name.to_ascii_lowercase());
        }
        Ok(hosts)
    };
    Kind {
        allowed: "a list of host names".to_owned(),
        read: Box::new(read),
    }
}

fn is_name(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    let mut labels = name.split('.');
    name.len() <= HOST_MAX && labels.all(|label| !label.is_empty() && label.bytes().all(is_part))
}

/// What depends on two options at once.
pub(super) fn check(raw: &Raw, notes: &Notes) {
    let RawAdmin { bind, token, .. } = &raw.admin;
    if let Some(Some(address)) = bind.meant()
        && needs_token(*address)
        && token.is_missing()
    {
        let told = format!("{address} is not only this machine's, and there is no token");
        let cure = "add token = \"…\" to [admin], such as the output of `openssl rand -hex 32`, \
                    or bind to 127.0.0.1:9180";
        notes.missing(&bind.at, Mistake::new(told, cure));
    }
}

pub(super) fn settings(raw: &Raw) -> Settings {
    let hosts = raw.admin.allowed_hosts.value.iter();
    Settings {
        bind: raw.admin.bind.value,
        token: raw.admin.token.value.clone(),
        allowed_hosts: hosts.map(|name| name.as_str().into()).collect(),
    }
}

/// Writes the section back.
pub(super) fn write(out: &mut Toml, admin: &Settings) {
    out.header("[admin]");
    let bind = admin.bind.map(|bind| bind.to_string());
    out.text("bind", &bind.unwrap_or_default());
    if admin.token.is_some() {
        out.text("token", secret::HIDDEN);
    }
    let hosts: Vec<_> = admin.allowed_hosts.iter().map(|it| toml_text(it)).collect();
    out.bare("allowed_hosts", format_args!("[{}]", hosts.join(", ")));
}
