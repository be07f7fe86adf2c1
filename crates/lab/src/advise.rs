//! `tidegate advise`: says from access logs which limits to set.
//!
//! The logs become samples, `tidegate-advice` answers, and the answer is printed with its reasons, as a
//! config, as a diff to today's, and with a plan of what it would change. docs/how-to/advise.md has the method.

mod callers;
mod config;
mod edit;
pub(super) mod read;
mod report;
mod sidecars;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use tidegate_advice::advice::{Advice, AdviceRequest, Slo, advise};
use tidegate_runtime::command::{note, parse_duration, print, shows_progress, tell};

use self::edit::Edited;
use self::read::{Configs, Format, Logs, ReadError, ReadOptions};
use self::report::AdviceReport;
use crate::logs::Log;
use crate::plan::{self, PlanOutput};
use tidegate::config::{Config, LoadedConfig, load, read as read_config};
use tidegate::options::shown::HIDDEN;
use tidegate::tools::failed;
use tidegate::tools::service_user::{self, Content};

/// The arguments of `tidegate advise LOG…`.
#[derive(Clone, Debug, clap::Args)]
pub struct AdviseArguments {
    /// Logs of Tidegate in JSON, of Apache, nginx or HAProxy, in any order; `-` is standard input
    #[arg(required = true, value_name = "LOG")]
    pub logs: Vec<PathBuf>,
    /// The LogFormat of Apache or the log_format of nginx, if it is not a usual one; `haproxy`; `json`
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<Format>,
    /// Within what time calls must end, waits included, such as p95=5s
    #[arg(long, value_name = "pN=DURATION", value_parser = slo)]
    pub slo: Option<Slo>,
    /// How long a call may wait, instead of what today's config says
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub max_wait: Option<Duration>,
    /// Today's config, instead of the last one in the logs
    #[arg(long, short, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Write today's config with the advice in it to this new file
    #[arg(long, short, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// The seed of everything that is drawn
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// A bound on times, such as p95=5s.
fn slo(text: &str) -> Result<Slo, String> {
    let wrong = || format!("`{text}` is no bound on times such as p95=5s");
    let (share, within) = text.split_once('=').ok_or_else(wrong)?;
    let percent: f64 = share
        .strip_prefix('p')
        .and_then(|it| it.parse().ok())
        .ok_or_else(wrong)?;
    if !(1.0..100.0).contains(&percent) {
        return Err(format!("`{share}` is not between p1 and p99.99"));
    }
    let within = parse_duration(within)?;
    if within.is_zero() {
        return Err(wrong());
    }
    Ok(Slo {
        share: percent / 100.0,
        within: nanos(within),
    })
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Today's config: its text, its name, and what it says.
struct Today {
    text: String,
    name: String,
    config: Config,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
enum Unknown {
    #[error(transparent)]
    Log(#[from] ReadError),
    #[error("{0}")]
    Config(String),
    #[error("no line of the logs is a call with steps: {0}")]
    NoCalls(String),
    #[error("{} exists; name a new file", .0.display())]
    Exists(PathBuf),
    #[error("the output is not complete")]
    Print(#[source] io::Error),
    #[error("cannot write {}", path.display())]
    Write {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
}

/// Reads the logs and prints the advice. Exit code 0 with a value at least, 1 without one, 2 if the
/// logs cannot be judged or a file cannot be read or written.
pub(crate) fn run(arguments: &AdviseArguments) -> ExitCode {
    match answered(arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            let cause = std::error::Error::source(&why).map(|cause| format!(": {cause}"));
            let _: ExitCode = failed(format!("{why}{}", cause.unwrap_or_default()));
            ExitCode::from(2)
        }
    }
}

/// Whether there is a value at least.
fn answered(arguments: &AdviseArguments) -> Result<bool, Unknown> {
    if let Some(path) = arguments.out.as_ref().filter(|path| path.exists()) {
        return Err(Unknown::Exists(path.clone()));
    }
    let mut logs = samples(arguments)?;
    for note in &logs.notes {
        tell(note);
    }
    if logs.samples.is_empty() && logs.old + logs.broken > 0 {
        let why = report::left_out(&logs).trim_end().replace('\n', "; ");
        return Err(Unknown::NoCalls(why));
    }
    let today = today(arguments, &logs).map_err(Unknown::Config)?;
    // The plan needs the memory.
    let samples = std::mem::take(&mut logs.samples);
    let advice = advise(&samples, &question(arguments, today.as_ref()));
    drop(samples);
    let report = complete(arguments, &logs, today, advice);
    let text = match arguments.json {
        true => format!("{:#}\n", report.json(&logs)),
        false => report.text(&logs),
    };
    print(&text).map_err(Unknown::Print)?;
    match &arguments.out {
        Some(path) if report.has_values() => write(path, &report)?,
        Some(path) => note(format_args!(
            "{} is not written: the logs support no value\n",
            path.display()
        )),
        None => {}
    }
    Ok(report.has_values())
}

/// Reads logs, with the progress on a terminal.
fn samples(arguments: &AdviseArguments) -> Result<Logs, ReadError> {
    let opened = arguments.logs.iter().map(|path| Log::open(path));
    let opened = opened.collect::<Result<Vec<_>, _>>()?;
    let shows = shows_progress();
    let reading = ReadOptions {
        format: arguments.log_format.clone(),
        seed: arguments.seed,
    };
    let logs = Logs::read(opened, &reading, |lines| {
        if shows {
            note(format_args!("\r{lines} lines read"));
        }
    });
    if shows {
        note("\r\x1b[K");
    }
    logs
}

/// The advice as a config, as a diff, and with its plan.
fn complete(
    arguments: &AdviseArguments,
    logs: &Logs,
    today: Option<Today>,
    advice: Advice,
) -> AdviceReport {
    let config = today.as_ref().map(|today| &today.config);
    let settings = config.map(|config| &config.admit);
    let mut changes = config::changes(&config::of_each(&advice, logs.sidecars), settings);
    let (tokens, mut comments) = callers::buckets(&advice, config, &labels(logs));
    changes.extend(tokens);
    comments.insert_str(0, &config::beside(&advice, settings));
    let edited = today.as_ref().and_then(|today| {
        // The config in effect says each option in a line of its own.
        let whole = tidegate::config::effective(&today.config);
        let texts = [&today.text, &whole].into_iter();
        let edited = texts.filter_map(|text| Edited::of(text, &changes).ok());
        edited.min_by_key(|edited| edited.left_out.len())
    });
    let plan = planned(arguments, edited.as_ref());
    AdviceReport {
        advice,
        pasted: config::pasted(&changes) + &comments,
        diff: edited
            .as_ref()
            .zip(today.as_ref())
            .map(|(edited, today)| edited.diff(&today.name, "advised")),
        edited,
        plan,
    }
}

/// The labels of the callers in the logs, if they are sure.
fn labels(logs: &Logs) -> BTreeMap<String, String> {
    let text = logs.config.as_ref();
    let text = text.filter(|_| logs.configs == Configs::One);
    let config = text.and_then(|text| read_config(text, "", std::iter::empty()).ok());
    config.map_or(BTreeMap::new(), |checked| callers::labels(&checked.config))
}

/// Plans the calls of the logs under the advised config, or returns why that is not possible.
fn planned(arguments: &AdviseArguments, edited: Option<&Edited>) -> Result<PlanOutput, String> {
    let Some(edited) = edited else {
        return Err("today's config is not known; --config gives it".to_owned());
    };
    if !edited.is_changed() {
        return Err("the advice changes nothing".to_owned());
    }
    if arguments.logs.iter().any(|log| log.as_os_str() == "-") {
        return Err("standard input can be read only once; give files".to_owned());
    }
    let advised = read_config(&edited.text(), "the advised config", std::iter::empty());
    let advised = advised.map_err(|problems| problems.to_string())?;
    let planned = plan::planned(&arguments.logs, &advised.config, arguments.seed);
    planned.map_err(|why| why.to_string())
}

/// Writes the advised config to a new file. It may hold a secret, so only its owner can read it, and
/// the service if root writes it.
fn write(path: &Path, report: &AdviceReport) -> Result<(), Unknown> {
    let text = match &report.edited {
        Some(edited) => edited.text(),
        None => report.pasted.clone(),
    };
    let written = service_user::write_config(path, &text, Content::Secret, false);
    written.map_err(|cause| Unknown::Write {
        path: path.to_owned(),
        cause,
    })?;
    if text.contains(HIDDEN) {
        note(format_args!(
            "{}: secrets are not in a log, so \"{HIDDEN}\" stands for each; or give --config\n",
            path.display()
        ));
    }
    Ok(())
}

/// The config of the arguments, or else of the logs.
fn today(arguments: &AdviseArguments, logs: &Logs) -> Result<Option<Today>, String> {
    if let Some(path) = &arguments.config {
        let LoadedConfig { config, .. } = load(path).map_err(|error| error.render(false))?;
        let text = std::fs::read_to_string(path)
            .map_err(|cause| format!("cannot read {}: {cause}", path.display()))?;
        let name = path.display().to_string();
        return Ok(Some(Today { text, name, config }));
    }
    let Some(text) = &logs.config else {
        return Ok(None);
    };
    // A config that only an older version can read is as good as none.
    let read = read_config(text, "the config in the log", std::iter::empty());
    Ok(read.ok().map(|checked| Today {
        text: text.clone(),
        name: "the config in the log".to_owned(),
        config: checked.config,
    }))
}

fn question(arguments: &AdviseArguments, today: Option<&Today>) -> AdviceRequest {
    let mut question = AdviceRequest {
        slo: arguments.slo,
        seed: arguments.seed,
        ..AdviceRequest::default()
    };
    if let Some(today) = today {
        let settings = &today.config.admit;
        question.window = settings.window.as_ref().map(|window| nanos(window.length));
        question.max_wait = Some(nanos(settings.max_wait));
        let costs = &today.config.callers.costs;
        question.cost = costs.default.tokens();
        question.costs = costs
            .functions
            .iter()
            .map(|(name, cost)| (name.clone(), cost.tokens()))
            .collect();
    }
    if let Some(max_wait) = arguments.max_wait {
        question.max_wait = Some(nanos(max_wait));
    }
    question
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_on_times_is_a_quantile_and_a_duration() {
        let it = slo("p95=5s").expect("it is one");
        assert_eq!((it.share, it.within), (0.95, 5_000_000_000));
        for wrong in ["5s", "p=5s", "p0=5s", "p100=5s", "p95=", "p95=0s", "95=5s"] {
            assert!(slo(wrong).is_err(), "{wrong}");
        }
    }
}
