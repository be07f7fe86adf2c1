//! The cost of a claim (the caller and the charge of a call), and of counting its result.

use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate::call::{Identity, NoObserver, Origin, Peer, Record, Verdict};
use tidegate::callers::rate_limit::{Allowance, Rule};
use tidegate::callers::settings::{CallersSettings, StaticCaller, StaticRateLimit};
use tidegate::callers::{Callers, Meets};
use tidegate_callers::{Charge, Group, Label, NewCaller, Notes, Pattern, PatternText};
use tidegate_limits::{Burst, Fill, Timestamp};

const CALLS: u32 = 5_000;
const ROUNDS: u32 = 40;

fn main() {
    println!("one call: a claim, and its result; ns, the best of {ROUNDS} rounds");
    for patterns in [0, 100, 10_000] {
        let callers = Callers::start(&settings(patterns), None)
            .expect("there is room for them")
            .value;
        measure(
            &format!("{patterns} patterns, known callers"),
            &callers,
            100,
            "agent/",
        );
        if patterns > 0 {
            measure(
                &format!("{patterns} patterns, in a group and limited"),
                &callers,
                100.min(patterns),
                "named/",
            );
        }
    }
    let callers = Callers::start(&settings(10_000), None).expect("there is room for them");
    measure(
        "10000 patterns, agents that rotate",
        &callers.value,
        200_000,
        "rotates/",
    );
}

/// Callers with one pattern each. Every tenth is in a group, and all share a rate limit.
fn settings(patterns: usize) -> CallersSettings {
    let name: Arc<str> = "shared".into();
    let allowance = Allowance::Bucket {
        burst: Burst::new(1e6).expect("a burst"),
        fill: Fill::new(1e6).expect("a fill rate"),
    };
    let callers = (0..patterns).map(|number| {
        let user_agent = format!("named/{number}*");
        let pattern = Pattern::parse(&PatternText {
            user_agent: &user_agent,
            ..PatternText::default()
        });
        StaticCaller {
            caller: NewCaller {
                label: Label::new(&user_agent).expect("a label"),
                patterns: vec![pattern.expect("a pattern")],
                groups: match number % 10 {
                    0 => vec![Group::new("tenth").expect("a group")],
                    _ => Vec::new(),
                },
                notes: Notes::default(),
                charge: Charge::None,
                weight: None,
            },
            rate_limit: Some(Arc::clone(&name)),
        }
    });
    CallersSettings {
        callers: callers.collect(),
        rate_limits: vec![StaticRateLimit {
            name: Arc::clone(&name),
            rule: Rule::of(allowance),
        }],
        functions: vec!["guest_get_info".into()],
        ..CallersSettings::default()
    }
}

fn measure(name: &str, callers: &Callers, agents: usize, prefix: &str) {
    let peer = Peer::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 53_422)));
    let identities: Vec<Arc<Identity>> = (0..agents)
        .map(|number| {
            Arc::new(Identity {
                user_agent: Some(format!("{prefix}{number}").into()),
                ..Identity::without_names("nova".into(), peer)
            })
        })
        .collect();
    let record = Record::open(
        Origin {
            identity: Arc::clone(&identities[0]),
            arrived: Timestamp::ZERO,
        },
        tidegate::call::Dialect::Socket,
        "guest_get_info".into(),
        "polling".into(),
        None,
        Arc::new(NoObserver),
    );
    let mut facts = record.note(|facts| facts.clone());
    facts.verdict = Verdict::Delayed;
    facts.limit = Some("rate_limit:shared".into());
    let mut now = Timestamp::ZERO;
    let mut agents = identities.iter().cycle();
    let (mut claiming, mut ending) = (Duration::MAX, Duration::MAX);
    for _ in 0..ROUNDS {
        let mut claims = Vec::with_capacity(CALLS as usize);
        let started = Instant::now();
        for identity in agents.by_ref().take(CALLS as usize) {
            // Ten thousand calls a second.
            now = now + Duration::from_micros(100);
            claims.push(callers.claim(now, black_box(identity), "guest_get_info", Meets::Limits));
        }
        claiming = claiming.min(started.elapsed());
        let started = Instant::now();
        for claim in claims {
            facts.admitted = Some(now);
            facts.sent = Some(now);
            facts.answered = Some(now + Duration::from_millis(20));
            facts.claim = Some(claim);
            callers.ended(now, black_box(&facts));
        }
        ending = ending.min(started.elapsed());
    }
    println!(
        "{name:44} {:>6} {:>6}",
        (claiming / CALLS).as_nanos(),
        (ending / CALLS).as_nanos()
    );
}
