//! The machine form of `tidegate check`: mistakes with their place, and the limits in force.

use std::path::Path;

use serde_json::{Value, json};
use tidegate_limits::scheduler::OnExcess;

use super::CheckReport;
use super::new_guest::NewGuest;
use crate::call::LimitMode;
use crate::callers::rate_limit::Allowance;
use crate::callers::settings::QuotaBy;
use crate::config::{self, Config, ConfigPlace, LoadError, LoadedConfig, Problem, Severity};
use crate::state;

/// All of it on stdout, as one JSON object.
pub(super) fn report(path: &Path) -> CheckReport {
    let file = path.display().to_string();
    let (good, problems, limits, new_guest) = match config::load(path) {
        Ok(LoadedConfig { config, warnings }) => {
            let mut problems: Vec<Value> = warnings.iter().map(|it| problem(&file, it)).collect();
            let state = config.callers.state_file.as_deref();
            if let Err(error) = state.map_or(Ok(()), state::check_writable) {
                problems.push(json!({
                    "severity": "warning", "file": file, "line": null, "column": null,
                    "variable": null, "key": "callers.state_file", "message": error.to_string(),
                    "cure": "give the user that runs `tidegate serve` write access to the directory",
                }));
            }
            let new_guest = NewGuest::of(&config).map(|it| it.json());
            (true, problems, limits(&config), new_guest)
        }
        Err(LoadError::Wrong(problems)) => {
            let problems = problems.iter().map(|it| problem(&file, it)).collect();
            (false, problems, Vec::new(), None)
        }
        Err(error) => {
            let problem = json!({
                "severity": "error", "file": file, "line": null, "column": null, "variable": null,
                "key": null, "message": error.render(false),
                "cure": "create the file, make it readable, or name another one with --config",
            });
            (false, vec![problem], Vec::new(), None)
        }
    };
    let report = json!({
        "file": file, "good": good, "problems": problems, "limits": limits, "new_guest": new_guest,
    });
    CheckReport {
        good,
        problems: String::new(),
        settings: format!("{report:#}\n"),
    }
}

fn problem(file: &str, problem: &Problem) -> Value {
    let severity = match problem.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    };
    let (line, column, variable) = match &problem.place {
        ConfigPlace::Whole => (None, None, None),
        ConfigPlace::File { line, column, .. } => (Some(*line), Some(*column), None),
        ConfigPlace::Variable(name) => (None, None, Some(&**name)),
    };
    let key = Some(&problem.key).filter(|key| !key.is_empty());
    json!({
        "severity": severity, "file": file, "line": line, "column": column, "variable": variable,
        "key": key, "message": problem.message, "cure": problem.cure,
    })
}

/// Each limit with its kind, its calls and its figures.
fn limits(config: &Config) -> Vec<Value> {
    let gate = &config.admit;
    let mut all = Vec::new();
    if let Some(window) = &gate.window {
        let mut add = |name: &str, scope: &str, calls: u32| {
            all.push(json!({
                "name": name, "kind": "window", "scope": scope, "calls": calls,
                "window_seconds": window.length.as_secs_f64(), "fixed": window.fixed,
            }));
        };
        if let Some(calls) = window.total {
            add("total", "all", calls);
        }
        for (function, calls) in &window.functions {
            add(&format!("function:{function}"), function, *calls);
        }
    }
    if let Some(calls) = gate.outstanding_max {
        all.push(json!({
            "name": "outstanding", "kind": "outstanding", "scope": "all", "calls": calls,
        }));
    }
    for limit in &gate.paced {
        all.push(json!({
            "name": format!("rate_limit:{}", limit.name), "kind": "paced",
            "scope": limit.function.as_deref().unwrap_or("all"),
            "tokens_per_second": limit.rate.get(), "ratio": limit.ratio.get(),
            "observes": limit.mode == LimitMode::Observe,
        }));
    }
    for limit in &config.callers.rate_limits {
        let name = format!("rate_limit:{}", limit.name);
        let scope = "callers that name it";
        all.push(match limit.rule.allowance {
            Allowance::Exempt => json!({"name": name, "kind": "exempt", "scope": scope}),
            Allowance::Bucket { burst, fill } => json!({
                "name": name, "kind": "bucket", "scope": scope, "burst": burst.get(),
                "tokens_per_second": fill.get(),
            }),
            Allowance::Paced { rate, ratio } => json!({
                "name": name, "kind": "paced", "scope": scope, "tokens_per_second": rate.get(),
                "ratio": ratio.get(),
            }),
        });
    }
    for limit in config.quotas.iter().flat_map(|quotas| &quotas.limits) {
        let settings = limit.rule.settings();
        let mut claims = config.callers.quotas.iter();
        let by = claims.find(|claim| claim.name == limit.name);
        let scope = match by.map(|claim| &claim.by) {
            Some(QuotaBy::Caller) => "each caller",
            Some(QuotaBy::User) => "each user",
            Some(QuotaBy::Function(None)) => "each function",
            Some(QuotaBy::Function(Some(function))) => function,
            Some(QuotaBy::Total) | None => "all",
        };
        all.push(json!({
            "name": &*limit.name, "kind": "quota", "scope": scope, "tokens": settings.total,
            "window_seconds": settings.length.as_secs_f64(),
            "rejects": limit.on_excess == OnExcess::Reject,
        }));
    }
    all
}
