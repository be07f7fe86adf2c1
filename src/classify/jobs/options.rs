//! The option of a route whose calls begin jobs.

use std::time::Duration;

use crate::call::AnswerPlace;
use crate::call::job::{HttpJob, JobForm, JobIdPlace, JobRule};
use crate::options::kind::{DAY, MINUTE, SECOND, parse_duration, show_duration};
use crate::options::shown::quoted;
use crate::options::tree::{ConfigValue, Node, Table};
use crate::options::{Mistake, ValueKind, Words, words};

/// How long a job holds its slot at most, unless its route says otherwise.
const MOST: Duration = Duration::from_secs(30 * 60);
/// Statuses of an answer about a job that the backend does not know, unless the route says otherwise.
const GONE: [u16; 1] = [404];
/// Most entries of a list.
const ENTRIES_MAX: usize = 16;

const CURE: &str = "write it as { id = { json = \"/data\" }, status = \"GET /tasks/{id}\", done = { json = \"/status\", \
                    is = [\"stopped\"] }, most = \"30m\" }, or as one of \"proxmox\", \"xapi\" and \
                    \"operation-location\"";

words! {
    /// Jobs of well-known services.
    enum JobPreset {
        /// Tasks of Proxmox VE.
        Proxmox = "proxmox",
        /// Tasks of XAPI.
        Xapi = "xapi",
        /// An answer 202 that names the place of its status.
        OperationLocation = "operation-location",
    }
}

/// The jobs of a route.
pub(in crate::classify) fn job() -> ValueKind<JobRule> {
    ValueKind::of_parts(
        "\"proxmox\", \"xapi\", \"operation-location\", or a table with id, status, done and most",
        |node| Ok(job_of(node)?),
        shown,
    )
}

/// The rule for tasks of XAPI.
pub(crate) fn tasks_of_xapi() -> JobRule {
    rule_of(JobPreset::Xapi)
}

fn rule_of(preset: JobPreset) -> JobRule {
    let pointer = |text: &str| AnswerPlace::Json(text.parse().expect("it is a pointer"));
    let texts = |list: &[&str]| list.iter().map(|&it| it.into()).collect();
    let form = match preset {
        JobPreset::Xapi => JobForm::Xapi,
        JobPreset::Proxmox => JobForm::Http(HttpJob {
            id: vec![JobIdPlace {
                place: pointer("/data"),
                begins: "UPID:".into(),
            }],
            accepted: Vec::new(),
            status: "/api2/json/nodes/*/tasks/{id}/status".into(),
            done: pointer("/data/status"),
            ended: texts(&["stopped"]),
            running: Vec::new(),
            gone: GONE.to_vec(),
        }),
        JobPreset::OperationLocation => {
            let header = |name: &'static str| JobIdPlace {
                place: AnswerPlace::Header(http::HeaderName::from_static(name)),
                begins: "".into(),
            };
            JobForm::Http(HttpJob {
                id: vec![header("operation-location"), header("location")],
                accepted: vec![202],
                status: "{id}".into(),
                done: pointer("/status"),
                ended: texts(&["succeeded", "failed", "canceled", "cancelled"]),
                running: vec![202],
                gone: vec![404, 410],
            })
        }
    };
    JobRule { form, most: MOST }
}

fn shown(rule: &JobRule) -> String {
    let mut presets = JobPreset::WORDS.iter();
    let preset = presets.find(|(_, preset)| rule_of(*preset).form == rule.form);
    let most = show_duration(rule.most);
    match (preset, &rule.form) {
        (Some((word, _)), _) if rule.most == MOST => format!("{word:?}"),
        (Some((word, _)), _) => format!("{{ preset = {word:?}, most = {most:?} }}"),
        (None, JobForm::Xapi) => unreachable!("there is a preset of this form"),
        (None, JobForm::Http(job)) => {
            let id: Vec<_> = job.id.iter().map(shown_id).collect();
            let id = match &id[..] {
                [one] => one.clone(),
                many => format!("[{}]", many.join(", ")),
            };
            let mut parts = vec![
                format!("id = {id}"),
                format!("status = {:?}", format!("GET {}", job.status)),
                format!(
                    "done = {{ {}, is = {:?} }}",
                    shown_place(&job.done),
                    job.ended
                ),
                format!("most = {most:?}"),
            ];
            for (key, list) in [("accepted", &job.accepted), ("running", &job.running)] {
                if !list.is_empty() {
                    parts.push(format!("{key} = {list:?}"));
                }
            }
            if job.gone != GONE {
                parts.push(format!("gone = {:?}", job.gone));
            }
            format!("{{ {} }}", parts.join(", "))
        }
    }
}

fn shown_id(id: &JobIdPlace) -> String {
    let place = shown_place(&id.place);
    match &*id.begins {
        "" => format!("{{ {place} }}"),
        begins => format!("{{ {place}, begins = {begins:?} }}"),
    }
}

fn shown_place(place: &AnswerPlace) -> String {
    match place {
        AnswerPlace::Json(pointer) => format!("json = {:?}", pointer.as_str()),
        AnswerPlace::Header(name) => format!("header = {:?}", name.as_str()),
    }
}

fn wrong(cause: impl Into<String>) -> Mistake {
    Mistake::new(cause, CURE)
}

fn preset(node: &Node) -> Result<JobPreset, Mistake> {
    let word = text("preset", node)?;
    let mut presets = JobPreset::WORDS.iter();
    let preset = presets
        .find(|(own, _)| *own == word)
        .map(|(_, preset)| *preset);
    preset.ok_or_else(|| wrong(format!("{} is not built in", quoted(word))))
}

fn job_of(node: &Node) -> Result<JobRule, Mistake> {
    if node.text().is_some() {
        return Ok(rule_of(preset(node)?));
    }
    let Some(table) = node.table() else {
        return Err(wrong(format!("{} is neither", node.in_words())));
    };
    let mut most = MOST;
    let mut of_preset = None;
    let (mut id, mut status, mut done) = (None, None, None);
    let (mut accepted, mut running, mut gone) = (Vec::new(), Vec::new(), GONE.to_vec());
    for (key, node) in table {
        match key.as_str() {
            "most" => most = most_of(node)?,
            "preset" => of_preset = Some(preset(node)?),
            "id" => id = Some(ids(node)?),
            "status" => status = Some(status_path(text(key, node)?)?),
            "done" => done = Some(done_of(node)?),
            "accepted" => accepted = statuses(key, node)?,
            "running" => running = statuses(key, node)?,
            "gone" => gone = statuses(key, node)?,
            key => return Err(wrong(format!("{} is not known here", quoted(key)))),
        }
    }
    let form = match (of_preset, id, status, done) {
        (Some(preset), None, None, None) => rule_of(preset).form,
        (Some(_), ..) => return Err(wrong("a preset has its id, status and done already")),
        (None, Some(id), Some(status), Some((done, ended))) => JobForm::Http(HttpJob {
            id,
            accepted,
            status,
            done,
            ended,
            running,
            gone,
        }),
        (None, ..) => return Err(wrong("id, status or done is missing")),
    };
    Ok(JobRule { form, most })
}

fn text<'a>(key: &str, node: &'a Node) -> Result<&'a str, Mistake> {
    let text = node.text().filter(|text| !text.is_empty());
    text.ok_or_else(|| wrong(format!("{key} has {}, and no text", node.in_words())))
}

fn list<'a>(key: &str, node: &'a Node) -> Result<&'a [Node], Mistake> {
    let list = match &node.value {
        ConfigValue::List(list) => &list[..],
        _ => std::slice::from_ref(node),
    };
    match list.len() {
        1..=ENTRIES_MAX => Ok(list),
        number => Err(wrong(format!(
            "{key} has {number} entries, and not 1 to {ENTRIES_MAX}"
        ))),
    }
}

fn most_of(node: &Node) -> Result<Duration, Mistake> {
    let most = parse_duration(text("most", node)?);
    let most = most.filter(|most| (SECOND / 10..=DAY).contains(most));
    most.ok_or_else(|| {
        let cause = format!(
            "most has {}, and no time from 100ms to 24h",
            node.in_words()
        );
        Mistake::new(
            cause,
            format!("write it as most = {:?}", show_duration(30 * MINUTE)),
        )
    })
}

fn place(key: &str, node: &Node) -> Result<Option<AnswerPlace>, Mistake> {
    let place = match key {
        "json" => {
            let pointer = text(key, node)?.parse();
            AnswerPlace::Json(pointer.map_err(|error| wrong(format!("{error}")))?)
        }
        "header" => {
            let name = text(key, node)?;
            let is_wrong = |_| wrong(format!("{} is not the name of a header", quoted(name)));
            AnswerPlace::Header(name.parse().map_err(is_wrong)?)
        }
        _ => return Ok(None),
    };
    Ok(Some(place))
}

fn entries<'a>(key: &str, node: &'a Node) -> Result<&'a Table, Mistake> {
    let table = node.table();
    table.ok_or_else(|| wrong(format!("{key} has {}, and no table", node.in_words())))
}

fn ids(node: &Node) -> Result<Vec<JobIdPlace>, Mistake> {
    let ids = list("id", node)?.iter().map(|node| {
        let (mut found, mut begins) = (None, "");
        for (key, node) in entries("id", node)? {
            match place(key, node)? {
                Some(place) => found = Some(place),
                None if key == "begins" => begins = text(key, node)?,
                None => return Err(wrong(format!("{} is not known in id", quoted(key)))),
            }
        }
        Ok(JobIdPlace {
            place: found.ok_or_else(|| wrong("id has no place"))?,
            begins: begins.into(),
        })
    });
    ids.collect()
}

fn done_of(node: &Node) -> Result<(AnswerPlace, Vec<Box<str>>), Mistake> {
    let (mut found, mut ended) = (None, Vec::new());
    for (key, node) in entries("done", node)? {
        match place(key, node)? {
            Some(place) => found = Some(place),
            None if key == "is" => {
                let texts = list(key, node)?
                    .iter()
                    .map(|node| text(key, node).map(Box::from));
                ended = texts.collect::<Result<_, _>>()?;
            }
            None => return Err(wrong(format!("{} is not known in done", quoted(key)))),
        }
    }
    match found {
        Some(place) if !ended.is_empty() => Ok((place, ended)),
        _ => Err(wrong("done has no place, or no state in is")),
    }
}

fn statuses(key: &str, node: &Node) -> Result<Vec<u16>, Mistake> {
    let statuses = list(key, node)?.iter().map(|node| match node.value {
        ConfigValue::Integer(status @ 100..=599) => Ok(status as u16),
        _ => Err(wrong(format!(
            "{key} has {}, and no status of HTTP",
            node.in_words()
        ))),
    });
    statuses.collect()
}

/// `GET /tasks/{id}`
fn status_path(text: &str) -> Result<Box<str>, Mistake> {
    let Some(path) = text.strip_prefix("GET ").map(str::trim) else {
        return Err(wrong(format!(
            "status is {}, and does not begin with GET",
            quoted(text)
        )));
    };
    let is_plain = |segment: &str| !segment.contains(['{', '}', '*', '?', '#']);
    let mut segments = path.split('/').skip(1);
    let is_sound = path == "{id}"
        || path.starts_with('/')
            && path.len() <= 1024
            && path.bytes().all(|byte| byte.is_ascii_graphic())
            && segments.all(|it| it == "{id}" || it == "*" || is_plain(it))
            && path.split('/').filter(|it| *it == "{id}").count() == 1;
    match is_sound {
        true => Ok(path.into()),
        false => Err(wrong(format!(
            "status has {}, and no path with {{id}} as one whole segment, or {{id}} alone",
            quoted(path)
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_preset_is_shown_by_its_name() {
        for (word, preset) in JobPreset::WORDS {
            assert_eq!(shown(&rule_of(*preset)), format!("{word:?}"));
        }
    }
}
