//! Reads sdkserver's `zvmsdk.conf` as sdkserver does: with the rules of Python's `configparser`.
//!
//! These rules are strict, and apply to the whole file: a key twice in a section, or one wrong `%` in any
//! value, and sdkserver does not start. So such a file is refused here too, with the line.

use std::collections::BTreeMap;

/// Largest file that is read.   bytes
pub(super) const BYTES_MAX: u64 = 1 << 20;
/// How deep a value may refer to others, as in Python.
const DEPTH_MAX: usize = 10;
/// Largest value after everything is filled in. Python has no bound.   bytes
const VALUE_MAX: usize = 64 << 10;
const DEFAULTS: &str = "DEFAULT";

/// A section: each key with its line and value.
type IniSection = BTreeMap<String, (usize, String)>;

/// Options of `[sdkserver]`. An option that the file does not have is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SdkServer {
    pub(super) bind_addr: Option<String>,
    pub(super) bind_port: Option<u16>,
    pub(super) request_queue_size: Option<u32>,
    pub(super) max_worker_count: Option<u32>,
    pub(super) window_seconds: Option<u32>,
    pub(super) per_window: Option<String>,
    pub(super) outstanding: Option<u32>,
    pub(super) max_wait_seconds: Option<u32>,
}

impl SdkServer {
    /// Reads the text of a file.
    ///
    /// # Errors
    ///
    /// The line that stops sdkserver, and why.
    pub(super) fn read(text: &str) -> Result<Self, String> {
        let all = sections(text)?;
        let section = all.get("sdkserver");
        let text = |key: &str| {
            section
                .and_then(|it| it.get(key))
                .map(|(_, value)| value.clone())
        };
        let number = |key: &str, most: u32| {
            let Some((line, value)) = section.and_then(|it| it.get(key)) else {
                return Ok(None);
            };
            let number = integer(value).filter(|number| *number <= most);
            number.map(Some).ok_or_else(|| {
                format!("line {line}: {key} must be a whole number from 0 to {most}")
            })
        };
        let port = number("bind_port", u32::from(u16::MAX))?;
        Ok(Self {
            bind_addr: text("bind_addr"),
            bind_port: port.and_then(|port| u16::try_from(port).ok()),
            request_queue_size: number("request_queue_size", 1_000_000)?,
            max_worker_count: number("max_worker_count", 65_536)?,
            window_seconds: number("smapi_rate_limit_window_size_seconds", 86_400)?,
            per_window: text("smapi_rate_limit_per_window").filter(|it| !it.trim().is_empty()),
            outstanding: number("smapi_max_outstanding_requests", 1_000_000)?,
            max_wait_seconds: number("smapi_request_postpone_threshold_seconds", 86_400)?,
        })
    }
}

/// A number as Python's `int` reads it.
fn integer(text: &str) -> Option<u32> {
    let digits = text.trim();
    let digits = digits.strip_prefix('+').unwrap_or(digits);
    let is_sound = digits
        .split('_')
        .all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()));
    is_sound
        .then(|| digits.replace('_', "").parse().ok())
        .flatten()
}

/// Every section, with its own values and those of `[DEFAULT]`, filled in.
///
/// # Errors
///
/// What `configparser` does not accept.
pub(super) fn sections(text: &str) -> Result<BTreeMap<String, IniSection>, String> {
    let raw = raw(text)?;
    let empty = IniSection::new();
    let defaults = raw.get(DEFAULTS).unwrap_or(&empty);
    let mut filled = BTreeMap::new();
    for (name, own) in raw.iter().filter(|(name, _)| *name != DEFAULTS) {
        let mut all = defaults.clone();
        all.extend(own.iter().map(|(key, value)| (key.clone(), value.clone())));
        let mut section = IniSection::new();
        for (key, (line, value)) in &all {
            let value = fill(value, &all, 0)
                .map_err(|why| format!("line {line}: the value of {key} {why}"))?;
            section.insert(key.clone(), (*line, value));
        }
        filled.insert(name.clone(), section);
    }
    Ok(filled)
}

/// Fills in `%(name)s`, and reads `%%` as `%`.
fn fill(value: &str, all: &IniSection, depth: usize) -> Result<String, String> {
    if depth >= DEPTH_MAX {
        return Err("refers to itself, or to others ten deep".to_owned());
    }
    let mut text = String::new();
    let mut rest = value;
    while let Some(at) = rest.find('%') {
        text.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('%') {
            text.push('%');
            rest = after;
            continue;
        }
        let inside = rest.strip_prefix('(');
        let inside = inside.ok_or("has a % that is not followed by % or (: write %%")?;
        let (name, after) = inside
            .split_once(")s")
            .filter(|(name, _)| !name.contains(')'))
            .ok_or("has a %( without its )s")?;
        rest = after;
        let name = name.to_lowercase();
        let (_, other) = all
            .get(&name)
            // It is not quoted: it may be a part of a password.
            .ok_or("refers to a %(name)s that is not there; write %% for a %")?;
        match other.contains('%') {
            true => text.push_str(&fill(other, all, depth + 1)?),
            false => text.push_str(other),
        }
        if text.len() > VALUE_MAX {
            return Err("is too long".to_owned());
        }
    }
    text.push_str(rest);
    Ok(text)
}

/// Every section as it stands in the file.
fn raw(text: &str) -> Result<BTreeMap<String, IniSection>, String> {
    let mut all: BTreeMap<String, IniSection> = BTreeMap::new();
    let mut current: Option<String> = None;
    let mut key: Option<String> = None;
    let mut indent = 0;
    for (line, number) in text.lines().zip(1..) {
        let value = line.trim();
        if value.starts_with(['#', ';']) {
            continue;
        }
        let open = |all: &mut BTreeMap<String, IniSection>, more: &str| {
            let section = current.as_ref().and_then(|name| all.get_mut(name));
            let value = section
                .zip(key.as_ref())
                .and_then(|(section, key)| section.get_mut(key));
            if let Some((_, value)) = value {
                value.push('\n');
                value.push_str(more);
            }
        };
        if value.is_empty() {
            open(&mut all, "");
            continue;
        }
        let depth = line.len() - line.trim_start().len();
        if current.is_some() && key.is_some() && depth > indent {
            open(&mut all, value);
            continue;
        }
        indent = depth;
        if let Some(name) = header(value) {
            let is_new = !all.contains_key(name);
            if !is_new && name != DEFAULTS {
                return Err(format!(
                    "line {number}: the section [{name}] is there twice"
                ));
            }
            all.entry(name.to_owned()).or_default();
            (current, key) = (Some(name.to_owned()), None);
            continue;
        }
        let Some(section) = current.as_ref().and_then(|name| all.get_mut(name)) else {
            return Err(format!(
                "line {number}: a key stands before the first [section]"
            ));
        };
        let wrong = || format!("line {number}: this is no section, key = value or comment");
        let (name, value) = value.split_once(['=', ':']).ok_or_else(wrong)?;
        let name = name.trim().to_lowercase();
        if name.is_empty() {
            return Err(wrong());
        }
        if section
            .insert(name.clone(), (number, value.trim().to_owned()))
            .is_some()
        {
            return Err(format!(
                "line {number}: {name} is there twice in its section"
            ));
        }
        key = Some(name);
    }
    for (_, value) in all.values_mut().flat_map(BTreeMap::values_mut) {
        value.truncate(value.trim_end().len());
    }
    Ok(all)
}

/// The name in `[name]`. What follows the last bracket is ignored, as in Python.
fn header(value: &str) -> Option<&str> {
    let inside = value.strip_prefix('[')?;
    let name = &inside[..inside.rfind(']')?];
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests;
