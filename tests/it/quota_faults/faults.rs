//! The faults of the sidecars and the store, at random from a printed seed.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::{Instant, sleep};

use super::Plan;
use super::call::now;
use super::sidecars::Sidecar;
use super::store::Store;
use crate::relay::Mode;

/// The fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// A sidecar is killed, and starts again.
    Killed,
    /// A sidecar stands still.
    Paused,
    /// A sidecar's links to the store do this.
    Links(Mode),
    /// The store's leader is killed, and starts again.
    LeaderKilled,
    /// The store's leader stands still.
    LeaderPaused,
    /// Another server of the store leads, in order.
    FailedOver,
}

/// A fault that was done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    pub(super) fault: Fault,
    /// The sidecar that it struck, if it struck one.
    pub(super) sidecar: Option<usize>,
    /// µs since the epoch, both
    pub(super) from: u64,
    pub(super) to: u64,
}

/// The faults of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Faults {
    None,
    /// Of every kind. Two sidecars may suffer at once, never more than half of all and one.
    All,
    /// The only server of the store is killed and restarts without its data, together with a
    /// sidecar, which cannot know the loss.
    Loss,
    /// Servers of the store take turns to lead, in order.
    FailOvers,
    /// Orderly fail-overs, while sidecars are killed and stopped.
    FailOversAndSidecars,
    /// Orderly fail-overs, while sidecars suffer as in `All`: some do not hear what the sentinels say.
    FailOversAndLinks,
    /// The server of the store that leads is killed, and another one leads.
    Crashes,
}

/// A time between these numbers of windows, in tenths.
fn windows(plan: &Plan, random: &mut StdRng, tenths: std::ops::Range<u32>) -> Duration {
    plan.window * random.random_range(tenths) / 10
}

/// Does them for as long as the plan says; all is well again when this returns.
pub(super) async fn strike(plan: &Plan, sidecars: &mut [Sidecar], store: &mut Store) -> Vec<Done> {
    let until = Instant::now() + plan.lasts;
    let mut done = match plan.faults {
        Faults::None => {
            tokio::time::sleep_until(until).await;
            Vec::new()
        }
        Faults::All | Faults::FailOversAndSidecars | Faults::FailOversAndLinks => {
            let half = sidecars.len() / 2;
            let (some, others) = sidecars.split_at_mut(half);
            let (first, second, third) = tokio::join!(
                strike_sidecars(plan, 1, some, until),
                strike_sidecars(plan, 2, others, until),
                async {
                    match plan.faults {
                        Faults::All => strike_store(plan, store, until).await,
                        _ => fail_over(plan, store, until).await,
                    }
                },
            );
            [first, second, third].concat()
        }
        Faults::Loss => lose(plan, sidecars, store, until).await,
        Faults::FailOvers | Faults::Crashes => fail_over(plan, store, until).await,
    };
    done.sort_by_key(|done| done.from);
    done
}

/// Strikes sidecars with these faults one after the other.
async fn strike_sidecars(
    plan: &Plan,
    lane: u64,
    sidecars: &mut [Sidecar],
    until: Instant,
) -> Vec<Done> {
    let mut random = StdRng::seed_from_u64(plan.seed ^ lane);
    let mut all = Vec::new();
    let kinds = match plan.faults {
        Faults::FailOversAndSidecars => 6,
        _ => 9,
    };
    loop {
        sleep(windows(plan, &mut random, 2..15)).await;
        if Instant::now() >= until {
            return all;
        }
        let at = random.random_range(0..sidecars.len());
        let sidecar = &mut sidecars[at];
        let from = now();
        let fault = match random.random_range(0..kinds) {
            0..3 => {
                sidecar.kill(windows(plan, &mut random, 0..20)).await;
                Fault::Killed
            }
            3..6 => {
                sidecar.pause(windows(plan, &mut random, 5..30)).await;
                Fault::Paused
            }
            kind => {
                let mode = [Mode::Cut, Mode::Stalled, Mode::Deaf][kind - 6];
                let lasts = windows(plan, &mut random, 5..30);
                sidecar.disturb_links(mode, lasts).await;
                Fault::Links(mode)
            }
        };
        all.push(Done {
            fault,
            sidecar: Some(sidecar.number),
            from,
            to: now(),
        });
    }
}

/// Kills and pauses the leader, by turns and at random.
async fn strike_store(plan: &Plan, store: &mut Store, until: Instant) -> Vec<Done> {
    let mut random = StdRng::seed_from_u64(plan.seed ^ 3);
    let mut all = Vec::new();
    loop {
        sleep(windows(plan, &mut random, 20..80)).await;
        if Instant::now() >= until {
            return all;
        }
        let from = now();
        let fault = if all.len() % 2 == 0 {
            let away = Duration::from_millis(random.random_range(500..2_500));
            store.kill_leader(away).await;
            Fault::LeaderKilled
        } else {
            let pause = Duration::from_millis(random.random_range(500..4_000));
            store.pause_leader(pause).await;
            Fault::LeaderPaused
        };
        all.push(Done {
            fault,
            sidecar: None,
            from,
            to: now(),
        });
    }
}

/// Has one server after the other lead.
async fn fail_over(plan: &Plan, store: &mut Store, until: Instant) -> Vec<Done> {
    let mut random = StdRng::seed_from_u64(plan.seed);
    let mut all = Vec::new();
    loop {
        sleep(windows(plan, &mut random, 5..25)).await;
        if Instant::now() >= until {
            return all;
        }
        let from = now();
        let fault = if plan.faults != Faults::Crashes {
            store.fail_over().await;
            Fault::FailedOver
        } else {
            store.kill_leader(Duration::from_millis(500)).await;
            Fault::LeaderKilled
        };
        all.push(Done {
            fault,
            sidecar: None,
            from,
            to: now(),
        });
    }
}

/// Kills the store and a sidecar at once.
async fn lose(
    plan: &Plan,
    sidecars: &mut [Sidecar],
    store: &mut Store,
    until: Instant,
) -> Vec<Done> {
    let mut random = StdRng::seed_from_u64(plan.seed);
    let mut all = Vec::new();
    loop {
        sleep(windows(plan, &mut random, 10..40)).await;
        if Instant::now() >= until {
            return all;
        }
        let at = random.random_range(0..sidecars.len());
        let sidecar = &mut sidecars[at];
        let from = now();
        let (killed, ()) = tokio::join!(
            async {
                sidecar.kill(Duration::ZERO).await;
                now()
            },
            store.kill_leader(Duration::ZERO),
        );
        let number = Some(sidecar.number);
        for (fault, sidecar, to) in [
            (Fault::Killed, number, killed),
            (Fault::LeaderKilled, None, now()),
        ] {
            all.push(Done {
                fault,
                sidecar,
                from,
                to,
            });
        }
    }
}
