//! `/v1/quotas` and `/quotas`: what this sidecar knows of its shared quotas, and the state of
//! their store.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{Html, IntoResponse, Response};
use maud::{Markup, html};
use serde::Serialize;
use tidegate_runtime::page;

use super::callers::{Parameters, QuotaKeys};
use super::routes::Routes;
use super::{AdminSource, api};

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
    /// Keys that the store removed to make room; `None` if it removes none, or if that is unknown.
    pub evictions: Option<u64>,
    /// The last error, which may be long over.
    pub trouble: Option<QuotaStoreTrouble>,
}

/// The last error.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct QuotaStoreTrouble {
    /// The text of the trouble.
    pub text: String,
    /// How long ago.
    pub seconds_ago: f64,
}

/// The state of a quota.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct QuotaState {
    /// The name of the quota in refusals, logs and metrics.
    pub name: String,
    /// The total that all sidecars together may spend on a key in a window.   tokens
    pub total: u64,
    /// How long a window is.
    pub window_seconds: f64,
    /// `wait` or `reject`.
    pub on_excess: &'static str,
    /// `enforce`, `observe` or `optimistic`.
    pub mode: &'static str,
    /// `deny`, `allow` or `safe`.
    pub when_store_away: &'static str,
    /// The share of a window that this sidecar always owns.   tokens
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

/// The state of a quota's key.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct QuotaKeyState {
    /// The owner; empty if unknown.
    pub key: String,
    /// The window that was last seen in the store; `None` if none was.
    pub window: Option<u64>,
    /// The rest of the window at that time.   tokens
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
    /// The troubles of the key, in words.
    pub trouble: Vec<String>,
}

pub(super) fn routes() -> Routes<Arc<dyn AdminSource>> {
    Routes::new().get("/v1/quotas", quotas).get("/quotas", page)
}

async fn quotas(
    State(source): State<Arc<dyn AdminSource>>,
    Parameters(QuotaKeys(keys_max)): Parameters<QuotaKeys>,
) -> Json<QuotasState> {
    Json(api::read(source, move |source| source.quotas(keys_max)).await)
}

async fn page(State(source): State<Arc<dyn AdminSource>>) -> Response {
    let body = api::read(source, |source| body(&source.quotas(PAGE_KEYS)));
    let page = page::page(
        "Tidegate quotas",
        env!("CARGO_PKG_VERSION"),
        Some(2),
        "/",
        &body.await,
    );
    (page::HEADERS, Html(page)).into_response()
}

fn body(state: &QuotasState) -> Markup {
    html! {
        @match &state.store {
            None => p { "There are no quotas." },
            Some(store) => (page::part("Store", &section_of_store(store))),
        }
        @for quota in &state.quotas { (page::part(&quota.name, &section_of_quota(quota))) }
    }
}

fn section_of_store(store: &QuotaStoreState) -> Markup {
    let (class, word) = match store.up {
        Some(true) => ("good", "answers"),
        Some(false) => ("bad", "is unavailable"),
        None => ("bad", "has not answered yet"),
    };
    let since = store.since_seconds;
    let time = match store.time_uncertainty_seconds {
        Some(seconds) => format!("its time is known to {:.1} ms", seconds * 1e3),
        None => "its time is not known".to_owned(),
    };
    html! {
        p class=(class) { (store.engine) " " (word) ", for " (format!("{since:.0}")) " s" }
        p {
            (time) "; " (store.members) " sidecars share, " (store.expected_sidecars)
            " are expected"
        }
        @if store.unexpected_members > 0 {
            p.bad { "more sidecars than expected: safe shares may be more than the total" }
        }
        @if let Some(keys) = store.evictions.filter(|keys| *keys > 0) {
            p.bad { (keys) " keys were evicted: the window of a record among them is granted again" }
        }
        @if let Some(trouble) = &store.trouble {
            p {
                "last trouble, " (format!("{:.0}", trouble.seconds_ago)) " s ago: " (trouble.text)
            }
        }
    }
}

fn section_of_quota(quota: &QuotaState) -> Markup {
    let QuotaState {
        total,
        window_seconds,
        on_excess,
        mode,
        when_store_away,
        safe_share,
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
    } = &quota.decisions;
    let rows = html! { @for key in &quota.used_last { (row_of_key(key)) } };
    html! {
        p {
            (total) " in " (window_seconds) " s for each key; " (on_excess) ", " (mode) "; "
            (when_store_away) " when the store is unavailable, safe share " (safe_share)
        }
        p {
            "calls: " (local) " at once, " (drew) " after a draw, " (waited) " after a wait, "
            (refused) " refused; " (draws) " draws, " (conflicts) " conflicts, " (unknown)
            " without an answer, " (unavailable) " not asked; " (keys) " keys, " (keys_forgotten)
            " forgotten, " (keys_in_trouble) " in trouble"
        }
        @if !quota.used_last.is_empty() {
            (page::table("Keys that calls wait for, and the latest", &head_of_keys(), &rows))
        }
    }
}

fn head_of_keys() -> Markup {
    html! {
        (page::head("key"))
        @for name in ["window", "left", "of"] { (page::head_n(name)) }
        (page::head("what is left"))
        @for name in ["held", "safe", "waiting"] { (page::head_n(name)) }
        (page::head("trouble"))
    }
}

fn row_of_key(of: &QuotaKeyState) -> Markup {
    let name = match of.key.as_str() {
        "" => "(unknown)",
        key => key,
    };
    html! {
        tr {
            th scope="row" { (name) }
            @for figure in [of.window, of.left, of.window_total] {
                td.n {
                    @match figure {
                        Some(figure) => (figure),
                        None => "?",
                    }
                }
            }
            td {
                @if let (Some(left), Some(total)) = (of.left, of.window_total) {
                    (page::bar(total as f64, left as f64))
                }
            }
            @for figure in [of.held, of.safe, of.waiting] { td.n { (figure) } }
            td.bad { (of.trouble.join("; ")) }
        }
    }
}
