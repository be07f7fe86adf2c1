//! Follows the primary that sentinels name, also while it is connected to one.
//!
//! A fail-over makes another server the primary, and the old one may go on taking writes for seconds, because
//! no server informs its clients. What is drawn there is granted again by the new one. So each sentinel is asked twice a
//! second, and its events are subscribed to:
//!
//! - Nothing is drawn without a fresh answer of at least half of the sentinels.
//! - The primary of the newest epoch counts, whichever sentinel names it.
//! - Nothing is drawn while a fail-over is under way: from before the new primary may write until it is named.
//!
//! A sidecar that was stopped for a while finds its answers old, and asks before it draws.

use std::sync::Arc;
use std::time::Duration;

use redis::{AsyncConnectionConfig, PushInfo, PushKind, Value};
use tidegate_runtime::BackOff;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use super::super::{Cause, StoreError};
use super::connect::{Login, RedisConnection, Sentinel, Server, open};
use super::{CallKind, OF_SENTINEL, RedisSettings, not_connected, told};

/// How often each sentinel is asked without an event.
const ASK: Duration = Duration::from_millis(500);
/// How long an answer counts.
const FRESH: Duration = Duration::from_secs(2);
/// The pauses before a sentinel that failed is asked again.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// A sentinel gets this part of a call's time.
const OF_DEADLINE: u32 = 4;
/// The shortest time for it.
const TRY_MIN: Duration = Duration::from_millis(100);

/// The events between the choice of a new primary and its end. The first ones come before it may write.
const STARTS: [&str; 4] = [
    "+failover-state-select-slave",
    "+selected-slave",
    "+failover-state-send-slaveof-noone",
    "+failover-state-wait-promotion",
];
/// The events after which the answers differ.
const CHANGES: [&str; 8] = [
    "+try-failover",
    "+elected-leader",
    "+failover-state-reconf-slaves",
    "+switch-master",
    "+failover-end",
    "-failover-abort-no-good-slave",
    "-failover-abort-slave-timeout",
    "-failover-abort-not-elected",
];

/// The state that a sentinel reports.
#[derive(Clone, Debug, Default)]
struct SentinelState {
    said: Option<PrimaryClaim>,
    /// When an event last said that it chooses another primary.
    alarm: Option<Instant>,
    /// Why it does not answer now; `None` while it does, and before it was asked.
    error: Option<Silence>,
}

#[derive(Clone, Debug)]
struct PrimaryClaim {
    primary: Server,
    epoch: u64,
    /// Whether the sentinel is choosing another primary.
    fails_over: bool,
    /// When it was asked.
    at: Instant,
}

#[derive(Clone, Debug)]
struct Silence {
    kind: fn(Cause) -> StoreError,
    cause: Arc<str>,
}

/// The judgement on the reports of all sentinels.
#[derive(Debug)]
enum Judgement {
    Primary(Server),
    /// An answer is on its way.
    Pending,
    FailsOver,
    Doubt(Silence),
}

/// The sentinels of a primary, each asked by a task of its own.
pub(super) struct Sentinels {
    views: watch::Sender<Vec<SentinelState>>,
    _tasks: Vec<AbortOnDropHandle<()>>,
}

impl Sentinels {
    /// Starts to ask; needs a tokio runtime.
    pub(super) fn start(settings: &RedisSettings, sentinel: &Sentinel) -> Self {
        let views = watch::Sender::new(vec![SentinelState::default(); settings.servers.len()]);
        let tasks = (0..settings.servers.len()).map(|at| {
            let follower = Follower {
                settings: settings.clone(),
                sentinel: sentinel.clone(),
                at,
                views: views.clone(),
            };
            AbortOnDropHandle::new(tokio::spawn(follower.follow()))
        });
        Self {
            _tasks: tasks.collect(),
            views,
        }
    }

    /// The primary, if there is no doubt about it. Waits for answers that are on their way.
    pub(super) async fn primary(&self, deadline: Instant) -> Result<Server, StoreError> {
        let mut views = self.views.subscribe();
        loop {
            let judged = judge(&views.borrow_and_update(), Instant::now());
            match judged {
                Judgement::Primary(server) => return Ok(server),
                Judgement::Pending => {
                    let changed = timeout_at(deadline, views.changed()).await;
                    changed
                        .map_err(not_connected)?
                        .expect("this holds the sender");
                }
                Judgement::FailsOver => {
                    let cause = "a fail-over is under way, and its sentinels name no primary yet";
                    return Err(StoreError::Unavailable(cause.into()));
                }
                Judgement::Doubt(trouble) => {
                    return Err((trouble.kind)(Cause::from(&*trouble.cause)));
                }
            }
        }
    }
}

/// Judges which primary counts.
fn judge(views: &[SentinelState], now: Instant) -> Judgement {
    let needed = views.len().div_ceil(2).max(1);
    let is_fresh = |said: &&PrimaryClaim| now.saturating_duration_since(said.at) < FRESH;
    let fresh = || {
        views
            .iter()
            .filter_map(|it| it.said.as_ref())
            .filter(is_fresh)
    };
    let chooses = |view: &SentinelState| {
        let said = view.said.as_ref().filter(is_fresh);
        // An answer to an earlier question does not know of the event.
        said.is_some_and(|said| said.fails_over || view.alarm.is_some_and(|at| at >= said.at))
    };
    if views.iter().any(chooses) {
        return Judgement::FailsOver;
    }
    if fresh().count() >= needed {
        // An old answer of a newer epoch is still newer.
        let said = views.iter().filter_map(|it| it.said.as_ref());
        let newest = said.max_by_key(|said| (said.epoch, said.at));
        let newest = newest.expect("there are fresh ones");
        return Judgement::Primary(newest.primary.clone());
    }
    let mut silent = views.iter().filter_map(|it| it.error.as_ref());
    match silent.clone().count() > views.len() - needed {
        true => Judgement::Doubt(silent.next_back().expect("there is one").clone()),
        false => Judgement::Pending,
    }
}

/// A task that asks a sentinel.
struct Follower {
    settings: RedisSettings,
    sentinel: Sentinel,
    at: usize,
    views: watch::Sender<Vec<SentinelState>>,
}

impl Follower {
    async fn follow(self) {
        let mut back_off = BackOff::doubling(RETRY.0, RETRY.1);
        loop {
            let error = self.attend(&mut back_off).await;
            let cause = std::error::Error::source(&error).expect("every error has a cause");
            let trouble = Silence {
                kind: match error {
                    StoreError::Unauthenticated(_) => StoreError::Unauthenticated,
                    StoreError::Denied(_) => StoreError::Denied,
                    _ => StoreError::Unavailable,
                },
                cause: cause.to_string().into(),
            };
            self.views
                .send_modify(|views| views[self.at].error = Some(trouble));
            tokio::time::sleep(back_off.pause_with_jitter(rand::random())).await;
        }
    }

    /// Asks over one connection until it fails.
    async fn attend(&self, back_off: &mut BackOff) -> StoreError {
        let wake = Arc::new(Notify::new());
        let connected = self.connect(&wake).await;
        let mut connection = match connected {
            Ok(connection) => connection,
            Err(error) => return error,
        };
        loop {
            let at = Instant::now();
            let asked = timeout(self.patience(), self.ask(&mut connection, at)).await;
            match asked.unwrap_or_else(|_| Err(self.silent())) {
                Ok(said) => self.views.send_modify(|views| {
                    views[self.at].said = Some(said);
                    views[self.at].error = None;
                }),
                Err(error) => return error,
            }
            back_off.reset();
            // An event or the next regular question.
            let _ = timeout(ASK, wake.notified()).await;
        }
    }

    async fn connect(&self, wake: &Arc<Notify>) -> Result<RedisConnection, StoreError> {
        let deadline = Instant::now() + self.patience();
        let (views, at, wake) = (self.views.clone(), self.at, Arc::clone(wake));
        let primary = self.sentinel.primary.clone();
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(Some(self.settings.deadline))
            .set_push_sender(move |push: PushInfo| {
                if let Some(starts) = event(&push, &primary) {
                    if starts {
                        let now = Instant::now();
                        views.send_modify(|views| views[at].alarm = Some(now));
                    }
                    wake.notify_one();
                }
                Ok::<_, redis::aio::SendError>(())
            });
        let login = Login::of_sentinel(&self.sentinel);
        let opened = open(&self.settings, self.server(), login, config, deadline).await;
        let mut connection = opened?;
        // Without this right its answers must do.
        for channel in STARTS.iter().chain(&CHANGES) {
            let subscribed = timeout_at(deadline, connection.redis.subscribe(channel)).await;
            match subscribed {
                Err(_) => return Err(self.silent()),
                Ok(Err(error)) if error.code().is_none() => {
                    return Err(told(error, CallKind::Read, OF_SENTINEL));
                }
                Ok(_) => {}
            }
        }
        Ok(connection)
    }

    async fn ask(
        &self,
        connection: &mut RedisConnection,
        at: Instant,
    ) -> Result<PrimaryClaim, StoreError> {
        let (server, name) = (self.server(), &*self.sentinel.primary);
        let mut address = redis::cmd("SENTINEL");
        address.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
        let mut state = redis::cmd("SENTINEL");
        state.arg("MASTER").arg(name);
        let mut sentinel = connection.redis.clone();
        // The state first: an address that is asked after it is at least as new.
        let of_state: Result<Value, _> = state.query_async(&mut sentinel).await;
        let answer: Result<Option<(String, u16)>, _> = address.query_async(&mut sentinel).await;
        let primary = match answer {
            Ok(Some((host, port))) => Server {
                host: host.into(),
                port,
            },
            Ok(None) => {
                return Err(StoreError::Unavailable(Cause::from(format!(
                    "the sentinel {server} watches no primary named {name:?}: set sentinel in [quota_store] to a name \
                     from its `sentinel monitor` lines"
                ))));
            }
            Err(error) if error.code() == Some("ERR") => {
                return Err(StoreError::Unavailable(Cause::from(format!(
                    "{server} is no sentinel ({error}): give the sentinels as servers in [quota_store], or leave \
                     sentinel out"
                ))));
            }
            Err(error) => return Err(told(error, CallKind::Read, OF_SENTINEL)),
        };
        let state = match of_state {
            Ok(state) => state,
            // A user that may ask for the address alone.
            Err(error) if error.code().is_some() => Value::Nil,
            Err(error) => return Err(told(error, CallKind::Read, OF_SENTINEL)),
        };
        let epoch = field(&state, "config-epoch").and_then(|it| it.parse().ok());
        let fails_over = field(&state, "failover-state");
        Ok(PrimaryClaim {
            primary,
            epoch: epoch.unwrap_or(0),
            fails_over: fails_over.is_some_and(|it| is_choosing(&it)),
            at,
        })
    }

    fn server(&self) -> &Server {
        &self.settings.servers[self.at]
    }

    fn patience(&self) -> Duration {
        (self.settings.deadline / OF_DEADLINE).max(TRY_MIN)
    }

    fn silent(&self) -> StoreError {
        StoreError::Unavailable(Cause::from(format!("no answer of {}", self.server())))
    }
}

/// Whether two servers may take writes in this state of a fail-over. Later states name the new one.
fn is_choosing(state: &str) -> bool {
    matches!(
        state,
        "select_slave" | "send_slaveof_noone" | "wait_promotion"
    )
}

/// Whether a message is an event of this primary, and whether a new primary is being chosen.
fn event(push: &PushInfo, primary: &str) -> Option<bool> {
    let [channel, payload] = &push.data[..] else {
        return None;
    };
    if push.kind != PushKind::Message {
        return None;
    }
    let (channel, payload) = (text(channel)?, text(payload)?);
    // "master NAME …" or "slave … @ NAME …", or only "NAME …".
    let is_ours = payload.split(' ').any(|word| word == primary);
    is_ours.then(|| STARTS.contains(&&*channel))
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(text) => String::from_utf8(text.clone()).ok(),
        Value::SimpleString(text) => Some(text.clone()),
        _ => None,
    }
}

/// A field of what a sentinel says of a primary: a map, or names and values in turn.
fn field(state: &Value, name: &str) -> Option<String> {
    match state {
        Value::Map(fields) => {
            let found = fields
                .iter()
                .find(|(key, _)| text(key).as_deref() == Some(name));
            found.and_then(|(_, value)| text(value))
        }
        Value::Array(fields) => {
            let found = fields
                .chunks(2)
                .find(|pair| text(&pair[0]).as_deref() == Some(name));
            found.and_then(|pair| text(pair.get(1)?))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(port: u16, epoch: u64, at: Instant) -> SentinelState {
        let host = "10.0.0.1".into();
        SentinelState {
            said: Some(PrimaryClaim {
                primary: Server { host, port },
                epoch,
                fails_over: false,
                at,
            }),
            ..SentinelState::default()
        }
    }

    fn silent() -> SentinelState {
        SentinelState {
            error: Some(Silence {
                kind: StoreError::Unavailable,
                cause: "connection refused".into(),
            }),
            ..SentinelState::default()
        }
    }

    #[track_caller]
    fn check(views: &[SentinelState], now: Instant, expected: &str) {
        let judged = match judge(views, now) {
            Judgement::Primary(server) => server.to_string(),
            Judgement::Pending => "pending".to_owned(),
            Judgement::FailsOver => "fails over".to_owned(),
            Judgement::Doubt(trouble) => trouble.cause.to_string(),
        };
        assert_eq!(judged, expected, "{views:?}");
    }

    #[test]
    fn the_primary_of_the_newest_epoch_counts_whichever_sentinel_names_it() {
        let now = Instant::now();
        let old = || says(1, 7, now);
        check(&[old(), old(), old()], now, "10.0.0.1:1");
        check(&[old(), says(2, 8, now), old()], now, "10.0.0.1:2");
        // Even if the sentinel that named it is silent since.
        let later = now + FRESH;
        let fresh = || says(1, 7, later);
        check(&[fresh(), says(2, 8, now), fresh()], later, "10.0.0.1:2");
    }

    #[test]
    fn half_of_the_sentinels_must_have_answered_lately() {
        let now = Instant::now();
        let good = || says(1, 7, now);
        check(&[good(), good(), silent()], now, "10.0.0.1:1");
        check(&[good(), silent(), silent()], now, "connection refused");
        check(&[good(), silent()], now, "10.0.0.1:1");
        check(
            &[SentinelState::default(), SentinelState::default(), good()],
            now,
            "pending",
        );
        // A sidecar that was stopped asks again before it goes on.
        check(&[good(), good(), good()], now + FRESH, "pending");
    }

    #[test]
    fn nothing_is_drawn_while_one_sentinel_chooses_another_primary() {
        let now = Instant::now();
        let mut choosing = says(1, 7, now);
        choosing.said.as_mut().expect("it said so").fails_over = true;
        let views = [says(1, 7, now), choosing, says(1, 7, now)];
        check(&views, now, "fails over");
        // An event is newer than the answer to an earlier question, and older than that to a later one.
        let alarmed = SentinelState {
            alarm: Some(now),
            ..says(1, 7, now)
        };
        check(&[alarmed.clone(), says(1, 7, now)], now, "fails over");
        let later = now + ASK;
        let answered = SentinelState {
            alarm: Some(now),
            ..says(1, 7, later)
        };
        check(&[answered, says(1, 7, now)], later, "10.0.0.1:1");
        assert!(is_choosing("send_slaveof_noone") && !is_choosing("reconf_slaves"));
    }

    #[test]
    fn an_event_of_another_primary_is_ignored() {
        let push = |channel: &str, payload: &str| PushInfo {
            kind: PushKind::Message,
            data: [channel, payload]
                .map(|it| Value::BulkString(it.as_bytes().to_vec()))
                .to_vec(),
        };
        let selected = push(
            "+selected-slave",
            "slave 10.0.0.2:1 10.0.0.2 1 @ mine 10.0.0.1 1",
        );
        assert_eq!(event(&selected, "mine"), Some(true));
        assert_eq!(event(&selected, "other"), None);
        let switched = push("+switch-master", "mine 10.0.0.1 1 10.0.0.2 1");
        assert_eq!(event(&switched, "mine"), Some(false));
    }
}
