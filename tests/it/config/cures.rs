//! Every cure that `check` prints is tried: files get slips as people make them, each cure is applied as it says, and
//! the file has to be better for it.

use tidegate::config::{ConfigPlace, Problem, Problems, Severity};

use super::read;

/// A good config with options of every kind of value.
const GOOD: &str = "
[server]
threads = 2
drain_timeout = \"30s\"
[[listen]]
name = \"nova\"
bind = \"127.0.0.1:8081\"
protocol = \"auto\"
[client]
request_timeout = \"30s\"
buffer_bytes = \"64KiB\"
[queue]
capacity = 4096
workers = 64
when_full = \"wait\"
postpone = \"jitter\"
postpone_jitter = [\"1s\", \"3s\"]
[backend]
socket = \"127.0.0.1:2001\"
kind = \"zvm\"
http = \"http://127.0.0.1:8080\"
max_reply_bytes = \"16MiB\"
[limits]
per_window = \"total:30, guest_list:10\"
window = \"1s\"
outstanding = 10
max_wait = \"50s\"
[callers]
identify = [\"user\", \"ip\"]
[[bucket]]
name = \"poller\"
burst = 20
fill = 5
[[caller]]
label = \"a\"
match = { user = \"nova\" }
rate_limit = \"poller\"
weight = 2
[admin]
bind = \"127.0.0.1:9180\"
token = \"secret\"
[log]
format = \"auto\"
level = \"info\"
access = true
";

/// Values as people write them by mistake. `V` is what the value is without quotes.
const VALUES: [&str; 27] = [
    "V",
    "\"V\"",
    "'V'",
    "“V”",
    "‘V’",
    "\"V",
    "V\"",
    "True",
    "False",
    "yes",
    "off",
    "none",
    "null",
    "unlimited",
    "4k",
    "64KB",
    "1.5",
    "0.5s",
    "-1",
    "0",
    "30",
    "\"30 sec\"",
    "1,000",
    "1e3",
    "[]",
    "{}",
    "99999999999999999999",
];

/// A file with one slip.
struct Slip {
    what: String,
    text: String,
}

fn slips() -> Vec<Slip> {
    let lines: Vec<&str> = GOOD.lines().collect();
    let mut all = Vec::new();
    let mut add = |at: usize, new: String| {
        let mut changed: Vec<&str> = lines.clone();
        changed[at] = &new;
        let what = format!("line {}: {new}", at + 1);
        all.push(Slip {
            what,
            text: changed.join("\n") + "\n",
        });
    };
    for (at, line) in lines.iter().enumerate() {
        if let Some((key, value)) = line.split_once(" = ") {
            let bare = value.trim_matches('"');
            for slip in VALUES {
                let slip = slip.replace('V', bare);
                if slip != value && !(value.starts_with(['[', '{']) && slip.starts_with(['“', '‘']))
                {
                    add(at, format!("{key} = {slip}"));
                }
            }
            let mut swapped: Vec<char> = key.chars().collect();
            swapped.swap(1, 2);
            let swapped: String = swapped.into_iter().collect();
            for name in [
                swapped,
                format!("{key}s"),
                key[1..].to_owned(),
                key.to_uppercase(),
            ] {
                add(at, format!("{name} = {value}"));
            }
            add(at, format!("{key}: {value}"));
            add(at, format!("{key} {value}"));
            add(at, format!("{line}\n{line}"));
            add(at, format!("{line} // a comment"));
            add(at, format!("{line};"));
        } else if let Some(name) = line.strip_prefix('[') {
            add(at, format!("[{line}"));
            add(at, line.trim_end_matches(']').to_owned());
            add(at, name.trim_matches(['[', ']']).to_owned() + ":");
            add(at, line.replace("[[", "[").replace("]]", "]"));
            let swapped = format!("[{}", name.replacen("er", "re", 1).replacen("im", "mi", 1));
            add(at, swapped);
        }
    }
    all
}

/// The range of bytes of a problem.
fn range(problem: &Problem) -> Option<(usize, usize)> {
    match problem.place {
        ConfigPlace::File { start, end, .. } => Some((start, end)),
        ConfigPlace::Whole | ConfigPlace::Variable(_) => None,
    }
}

/// The lines that a range is in.
fn lines_of(text: &str, (start, end): (usize, usize)) -> (usize, usize) {
    let from = text[..start].rfind('\n').map_or(0, |at| at + 1);
    let to = text[end..].find('\n').map_or(text.len(), |at| end + at + 1);
    (from, to)
}

fn replaced(text: &str, (start, end): (usize, usize), new: &str) -> String {
    format!("{}{new}{}", &text[..start], &text[end..])
}

/// The value that follows these words in a cure, as TOML.
fn after<'a>(cure: &'a str, words: &str) -> Option<&'a str> {
    let rest = &cure[cure.find(words)? + words.len()..];
    let end = match rest.chars().next()? {
        quote @ ('"' | '[' | '{') => {
            let close = match quote {
                '[' => ']',
                '{' => '}',
                quote => quote,
            };
            rest[1..].find(close)? + 2
        }
        _ => rest.find([',', ' ', ';', '?']).unwrap_or(rest.len()),
    };
    Some(&rest[..end])
}

/// The line `key = value` that a cure says to add.
fn added(cure: &str) -> Option<String> {
    let rest = match cure.split_once("such as ") {
        Some((_, rest)) => rest,
        None => cure.strip_prefix("add ")?,
    };
    let (key, _) = rest.split_once(" = ")?;
    let value = after(rest, " = ")?;
    let is_key = key
        .bytes()
        .all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    is_key.then(|| format!("{key} = {value}\n"))
}

/// The file with a line at the beginning of a section.
fn with_line(text: &str, header: &str, line: &str) -> Option<String> {
    let at = text.find(&format!("\n{header}\n"))? + header.len() + 2;
    Some(replaced(text, (at, at), line))
}

/// The file after a person did what the cure says. None if the cure leaves the choice to the person.
fn cured(text: &str, problem: &Problem) -> Option<String> {
    let cure = &*problem.cure;
    let mut at = range(problem)?;
    let (from, to) = lines_of(text, at);
    let line = text[from..to].trim_end_matches('\n');
    if cure.contains('…') || cure.contains("the output of") || cure.contains("letters") {
        return None;
    }
    let is_name = problem.message.starts_with("there is no option");
    // The place of a table is its name.
    if let Some(rest) = text[at.1..to].strip_prefix(" = ").filter(|_| !is_name) {
        at = (at.1 + 3, at.1 + 3 + rest.trim_end().len());
    }
    if cure.starts_with("add ") {
        let new = added(cure)?;
        return match after(cure, " to ").filter(|it| it.starts_with('[')) {
            Some(header) => with_line(text, header.trim_end_matches('.'), &new),
            None => Some(replaced(text, (to, to), &new)),
        };
    }
    if let Some((_, header)) = cure.split_once(" belongs in ") {
        // Of several such sections a person knows which.
        let moved = replaced(text, (from, to), "");
        return match header.starts_with('[') {
            true => None,
            false => with_line(&moved, &format!("[{header}]"), &text[from..to]),
        };
    }
    if let Some(rest) = cure.strip_prefix("write it in quotes: ") {
        let value = rest.split_once(" = ").map_or(rest, |(_, value)| value);
        return Some(replaced(text, at, value));
    }
    if let Some(word) = after(cure, "did you mean ") {
        let bare = word.trim_matches('"');
        return Some(match is_name {
            true => replaced(text, at, bare),
            false => replaced(text, at, word),
        });
    }
    if cure.starts_with("write plain quotes") {
        let plain = line.replace(['“', '”', '„', '‟', '‘', '’', '‚', '‛'], "\"");
        return Some(replaced(text, (from, from + line.len()), &plain));
    }
    if let Some(rest) = cure.strip_prefix("write the line as `") {
        let (fixed, others) = rest.split_once('`')?;
        return others
            .is_empty()
            .then(|| replaced(text, (from, from + line.len()), fixed));
    }
    if cure.contains("leave it out") || cure.contains("leave one of the two out") {
        return Some(replaced(text, (from, to), ""));
    }
    if cure.starts_with("give true or false") {
        return Some(replaced(text, at, "true"));
    }
    for words in ["such as ", "give one of ", "write it as ", "write "] {
        let value = after(cure, words).filter(|value| value.starts_with(['"', '[', '{']));
        // A part of a text has no quotes of its own.
        let is_part = text[..at.0].ends_with('"')
            || text[..at.0].ends_with([' ', ',']) && !line.contains(" = [");
        let is_part = is_part && text[from..at.0].contains('"');
        if let Some(value) = value {
            return Some(match is_part {
                true => replaced(text, at, value.trim_matches('"')),
                false => replaced(text, at, value),
            });
        }
    }
    // The smallest that is allowed: `give 1 to 64`, `give a number, 1 to 64, without quotes`.
    if let Some(before) = cure.split(" to ").next().filter(|_| cure.contains(" to ")) {
        let least = before.rsplit([' ', ',']).next()?;
        let value = match least.parse::<f64>() {
            Ok(_) => least.to_owned(),
            Err(_) if least.starts_with(|c: char| c.is_ascii_digit()) => format!("\"{least}\""),
            Err(_) => return None,
        };
        return Some(replaced(text, at, &value));
    }
    None
}

fn errors(problems: &Problems) -> Vec<(&str, &str)> {
    let errors = problems.iter().filter(|it| it.severity == Severity::Error);
    errors.map(|it| (&*it.key, &*it.message)).collect()
}

#[test]
fn every_cure_makes_the_file_better() {
    read(GOOD).expect("it is good without a slip");
    let (mut tried, mut open, mut worse) = (0, Vec::new(), Vec::new());
    let slips = slips();
    let mut mutated = 0;
    for Slip { what, text } in &slips {
        let Err(before) = read(text) else {
            continue;
        };
        mutated += 1;
        for problem in before.iter().filter(|it| it.severity == Severity::Error) {
            let told = format!(
                "{what}\n    {}: {}\n    {}",
                problem.key, problem.message, problem.cure
            );
            let Some(after) = cured(text, problem) else {
                open.push(told);
                continue;
            };
            tried += 1;
            let is_better = match read(&after) {
                Ok(_) => true,
                Err(after) => {
                    let (now, then) = (errors(&after), errors(&before));
                    // What refers to a name that was wrong is reported once the name is right.
                    let is_gone = now.iter().all(|(key, _)| *key != problem.key);
                    now.len() < then.len()
                        || now.len() == then.len() && is_gone && !problem.key.is_empty()
                }
            };
            if !is_better {
                let now = read(&after).map_or_else(|it| it.to_string(), |_| String::new());
                worse.push(format!("{told}\n    -> {now}"));
            }
        }
    }
    println!(
        "{mutated} files with slips, {tried} cures tried, {} for a person:",
        open.len()
    );
    println!("{}", open.join("\n"));
    assert!(
        worse.is_empty(),
        "{} of {tried}:\n{}",
        worse.len(),
        worse.join("\n")
    );
    assert!(mutated > 500 && tried > 500, "{mutated} {tried}");
    assert!(
        open.len() * 7 < tried,
        "{} of {tried} are for a person",
        open.len()
    );
}
