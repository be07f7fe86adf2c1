//! `/v1/quotas` and `/quotas`: what this sidecar knows of its shared quotas, and the state of
//! their store.

use std::fmt::{self, Write};
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::callers::{self, Parameters};
use super::index::{self, Escaped};
use super::routes::Routes;
use super::{Source, api};

/// Keys of each quota on the page.
const PAGE_KEYS: usize = 100;

/// All quotas.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct QuotasState {
    /// Their store; `None` without quotas.
    pub store: Option<QuotaStoreState>,
    /// Each of them, in the order of the config.
    pub quotas: Vec<QuotaState>,
}

/// The state of the store.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct QuotaStoreState {
    /// `memory`, `zookeeper`, `etcd` or `redis`.
    pub engine: &'static str,
    /// Whether it answers; `None` until that is known.
    pub up: Option<bool>,
    /// For how long it has been so.
    pub since_seconds: f64,
    /// The uncertainty of its time; `None` if nothing of its time is known.
    pub time_uncertainty_seconds: Option<f64>,
    /// Sidecars that are alive, including this one; 0 until the store has answered.
    pub members: u64,
    /// The expected maximum. With more, the safe shares add up to more than is set aside for them.
    pub expected_sidecars: u32,
    /// The number of further ones, for longer than a dead one still counts.
    pub unexpected_members: u64,
    /// The last error, which may be long over.
    pub trouble: Option<QuotaStoreTrouble>,
}

/// The last error.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct QuotaStoreTrouble {
    /// What.
    pub text: String,
    /// How long ago.
    pub seconds_ago: f64,
}

/// One quota.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct QuotaState {
    /// Its name in refusals, logs and metrics.
    pub name: String,
    /// What all sidecars together may spend on a key in a window.   tokens
    pub total: u64,
    /// How long a window is.
    pub window_seconds: f64,
    /// `wait` or `reject`.
    pub on_excess: &'static str,
    /// `enforce` or `optimistic`.
    pub mode: &'static str,
    /// `deny`, `allow` or `safe`.
    pub when_store_away: &'static str,
    /// What this sidecar always owns of a window.   tokens
    pub safe_share: u64,
    /// The results of calls.
    pub decisions: Decisions,
    /// Grants that the store confirmed.
    pub draws: u64,
    /// Writes that lost against another sidecar's.
    pub conflicts: u64,
    /// Requests without an answer.
    pub unknown: u64,
    /// Requests that could not be sent.
    pub unavailable: u64,
    /// Surpluses returned.
    pub relinquished: u64,
    /// Tokens that passed undrawn while the store was unavailable.
    pub allowed_tokens: u64,
    /// Tokens that passed on credit and were never drawn.
    pub overshot_tokens: u64,
    /// Keys that are known.
    pub keys: u64,
    /// Keys that were evicted to make room.
    pub keys_forgotten: u64,
    /// Keys with an error in the store.
    pub keys_in_trouble: u64,
    /// The keys that calls wait for, and the most recently used.
    pub used_last: Vec<QuotaKeyState>,
}

/// The results of calls that met a quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Decisions {
    /// Admitted with tokens that were here.
    pub local: u64,
    /// Admitted after they had waited for a draw.
    pub drew: u64,
    /// Admitted after a longer wait.
    pub waited: u64,
    /// Refused.
    pub refused: u64,
}

/// One key of a quota.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct QuotaKeyState {
    /// The owner; empty if unknown.
    pub key: String,
    /// The window that was last seen in the store; `None` if none was.
    pub window: Option<u64>,
    /// What was left of it then.   tokens
    pub left: Option<u64>,
    /// The total of that window.   tokens
    pub window_total: Option<u64>,
    /// The total of the next window.   tokens
    pub total: u64,
    /// Drawn tokens that may be spent here.   tokens
    pub held: u64,
    /// The part of the sidecar's own share that may be spent.   tokens
    pub safe: u64,
    /// The amount that the next draw must pay first.   tokens
    pub owed: u64,
    /// Calls in the queue that meet it, for any reason of their wait.
    pub waiting: u64,
    /// Their cost.   tokens
    pub waiting_tokens: u64,
    /// How long ago a call named it.
    pub used_seconds_ago: f64,
    /// What is wrong, in words.
    pub trouble: Vec<String>,
}

pub(super) fn routes() -> Routes<Arc<dyn Source>> {
    Routes::new().get("/v1/quotas", quotas).get("/quotas", page)
}

async fn quotas(
    State(source): State<Arc<dyn Source>>,
    parameters: Parameters,
) -> Result<Response, callers::Refused> {
    let keys_max = callers::quota_keys(parameters)?;
    let state = api::read(source, move |source| source.quotas(keys_max));
    Ok(Json(state.await).into_response())
}

async fn page(State(source): State<Arc<dyn Source>>) -> Response {
    let page = api::read(source, |source| {
        let mut page = String::with_capacity(16 << 10);
        write_page(&mut page, &source.quotas(PAGE_KEYS)).expect("writing to memory does not fail");
        page
    });
    index::answer(page.await)
}

fn write_page(page: &mut String, state: &QuotasState) -> fmt::Result {
    index::write_head(page, "Tidegate quotas")?;
    match &state.store {
        None => write!(page, "<p>there are no quotas</p>")?,
        Some(store) => write_store(page, store)?,
    }
    for quota in &state.quotas {
        write_quota(page, quota)?;
    }
    write!(page, "<p><a href=\"/\">all there is</a></p></body></html>")
}

fn write_store(page: &mut String, store: &QuotaStoreState) -> fmt::Result {
    let (class, word) = match store.up {
        Some(true) => ("good", "answers"),
        Some(false) => ("bad", "is unavailable"),
        None => ("bad", "has not answered yet"),
    };
    let QuotaStoreState {
        engine,
        since_seconds,
        members,
        expected_sidecars,
        unexpected_members,
        ..
    } = store;
    write!(
        page,
        "<p class=\"{class}\">{engine} {word}, for {since_seconds:.0} s</p><p>"
    )?;
    match store.time_uncertainty_seconds {
        Some(seconds) => write!(page, "its time is known to {:.1} ms", seconds * 1e3)?,
        None => write!(page, "its time is not known")?,
    }
    write!(
        page,
        "; {members} sidecars share, {expected_sidecars} are expected</p>"
    )?;
    if *unexpected_members > 0 {
        write!(
            page,
            "<p class=\"bad\">more sidecars than expected: safe shares may be more than the total</p>"
        )?;
    }
    match &store.trouble {
        None => Ok(()),
        Some(trouble) => write!(
            page,
            "<p>last trouble, {:.0} s ago: {}</p>",
            trouble.seconds_ago,
            Escaped(&trouble.text)
        ),
    }
}

fn write_quota(page: &mut String, quota: &QuotaState) -> fmt::Result {
    let name = Escaped(&quota.name);
    let QuotaState {
        total,
        window_seconds,
        on_excess,
        mode,
        when_store_away,
        safe_share,
        decisions,
        draws,
        conflicts,
        unknown,
        unavailable,
        keys,
        keys_forgotten,
        keys_in_trouble,
        ..
    } = quota;
    let Decisions {
        local,
        drew,
        waited,
        refused,
    } = decisions;
    write!(
        page,
        "<h2>{name}</h2><p>{total} in {window_seconds} s for each key; {on_excess}, {mode}; \
         {when_store_away} when the store is unavailable, safe share {safe_share}</p>\
         <p>calls: {local} at once, {drew} after a draw, {waited} after a wait, {refused} refused; {draws} draws, \
         {conflicts} conflicts, {unknown} without an answer, {unavailable} not asked; \
         {keys} keys, {keys_forgotten} forgotten, {keys_in_trouble} in trouble</p>"
    )?;
    if quota.used_last.is_empty() {
        return Ok(());
    }
    write!(
        page,
        "<table><tr><th>key</th><th class=\"n\">window</th><th class=\"n\">left</th>\
         <th class=\"n\">of</th><th></th><th class=\"n\">held</th><th class=\"n\">safe</th>\
         <th class=\"n\">waiting</th><th>trouble</th></tr>"
    )?;
    for key in &quota.used_last {
        write_key(page, key)?;
    }
    write!(page, "</table>")
}

fn write_key(page: &mut String, of: &QuotaKeyState) -> fmt::Result {
    let name = match of.key.as_str() {
        "" => "(unknown)",
        key => key,
    };
    let key = Escaped(name);
    write!(page, "<tr><td>{key}</td>")?;
    for figure in [of.window, of.left, of.window_total] {
        match figure {
            Some(figure) => write!(page, "<td class=\"n\">{figure}</td>")?,
            None => write!(page, "<td class=\"n\">?</td>")?,
        }
    }
    match (of.left, of.window_total) {
        (Some(left), Some(total)) => write!(
            page,
            "<td><meter max=\"{total}\" value=\"{left}\"></meter></td>"
        )?,
        _ => write!(page, "<td></td>")?,
    }
    for figure in [of.held, of.safe, of.waiting] {
        write!(page, "<td class=\"n\">{figure}</td>")?;
    }
    let trouble = of.trouble.join("; ");
    write!(page, "<td class=\"bad\">{}</td></tr>", Escaped(&trouble))
}
