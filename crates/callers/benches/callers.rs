//! The cost of finding out who is asking, alone and on one thread.
//!
//! `cargo bench -p tidegate-callers --bench callers` prints nanoseconds per look-up: the median
//! and the least of many short stretches, as in the scheduler's bench; then what 10,000 rows
//! that registered themselves take in memory, as the growth of the process (Linux only; the
//! allocator's own room is in it).
//!
//! For instruction counts and heap bytes, which no other work disturbs, run exactly N look-ups
//! of one mix under valgrind and take the difference of two N:
//!
//! ```text
//! valgrind --tool=callgrind <the bench's binary> --count 10000 [--mix mixed] [--patterns 10000]
//! ```

#![allow(clippy::disallowed_methods, reason = "a benchmark serves no calls")]

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use tidegate_callers::{
    AutoRegister, CallerTable, Charge, FieldSet, Identity, IdentityField, Ipv6Prefix, Label,
    Matches, NewCaller, Notes, Pattern, Registration, TableSettings,
};
use tidegate_limits::Timestamp;

const STRETCHES: usize = 300;
const ROUNDS: usize = 1000;

/// The patterns of a bench, and the identities that it looks up.
#[derive(Clone, Copy)]
struct Mix {
    name: &'static str,
    about: &'static str,
    pattern: fn(u32) -> [String; 5],
}

/// User, originator, ip, user agent, listener of the nth pattern.
const MIXES: [Mix; 7] = [
    Mix {
        name: "registered",
        about: "address, agent and listener exact, each address its own",
        pattern: |n| {
            let ip = Ipv4Addr::from(0x0a00_0000 + n);
            fields("", "", &ip.to_string(), "python-requests/2.31.0", "nova")
        },
    },
    Mix {
        name: "agents",
        about: "one address, each agent its own",
        pattern: |n| fields("", "", "10.0.0.1", &agent(n), "nova"),
    },
    Mix {
        name: "networks",
        about: "networks of 24 bits",
        pattern: |n| {
            let ip = Ipv4Addr::from(0x0a00_0000 + (n << 8));
            fields("", "", &format!("{ip}/24"), "", "")
        },
    },
    Mix {
        name: "prefixes",
        about: "prefixes of the agent",
        pattern: |n| fields("", "", "", &format!("{}*", agent(n)), ""),
    },
    Mix {
        name: "lengths",
        about: "prefixes of the agent, of thirty lengths",
        pattern: |n| {
            let more = "+".repeat(n as usize % 30);
            fields("", "", "", &format!("{}{more}*", agent(n)), "")
        },
    },
    Mix {
        name: "mixed",
        about: "every field, exact, prefix and network by turns",
        pattern: |n| {
            let ip = Ipv4Addr::from(0x0a00_0000 + (n << 8));
            match n % 6 {
                0 => fields("", "", &ip.to_string(), &agent(n), "nova"),
                1 => fields("", "", &format!("{ip}/24"), "python-requests/*", ""),
                2 => fields(&format!("user-{n}"), "", "", "", "nova"),
                3 => fields("", "", "", &format!("{}*", agent(n)), "n*"),
                4 => fields("", &format!("origin-{n}"), "10.0.0.0/8", "", ""),
                _ => fields("", "", &ip.to_string(), "", ""),
            }
        },
    },
    Mix {
        name: "nested",
        about: "the worst: nested prefixes of two fields, that only the third tells apart",
        pattern: |n| {
            let nest = |depth: u32| format!("{}*", "a".repeat(1 + depth as usize));
            fields(&nest(n % 100), &nest(n / 100), "", "none", "")
        },
    },
];

fn fields(user: &str, originator: &str, ip: &str, user_agent: &str, listener: &str) -> [String; 5] {
    [user, originator, ip, user_agent, listener].map(str::to_owned)
}

fn agent(n: u32) -> String {
    format!("python-requests/2.31.0 worker-{n:05}")
}

fn caller(n: u32, texts: &[String; 5]) -> NewCaller {
    let text = texts.each_ref().map(String::as_str).into();
    NewCaller {
        label: Label::new(&format!("caller {n}")).expect("a label"),
        groups: Vec::new(),
        notes: Notes::default(),
        patterns: vec![Pattern::parse(&text).expect("a pattern")],
        charge: Charge::None,
        weight: None,
    }
}

fn settings(auto_register: AutoRegister, per_second: u16) -> TableSettings {
    TableSettings {
        auto_register,
        auto_register_per_second: per_second,
        identify: [
            IdentityField::Listener,
            IdentityField::Ip,
            IdentityField::UserAgent,
        ]
        .into_iter()
        .collect::<FieldSet>(),
        ipv6_prefix: Ipv6Prefix::default(),
    }
}

/// A table of N patterns.
fn filled(mix: Mix, patterns: u32) -> CallerTable {
    let mut table = CallerTable::new(settings(AutoRegister::OFF, 0));
    for n in 0..patterns {
        let new = caller(n, &(mix.pattern)(n));
        table.insert(new).expect("a good caller");
    }
    table
}

/// An identity that owns its texts: user, originator, user agent, listener.
#[derive(Clone)]
struct Client {
    texts: [String; 4],
    ip: Option<IpAddr>,
}

impl Client {
    fn as_identity(&self) -> Identity<'_> {
        let [user, originator, user_agent, listener] = &self.texts;
        Identity {
            user,
            originator,
            ip: self.ip,
            user_agent,
            listener,
        }
    }
}

/// A client that matches the nth pattern: the demanded values, and others for the rest.
fn who_matches(mix: Mix, n: u32) -> Client {
    let [user, originator, ip, user_agent, listener] = (mix.pattern)(n);
    let seen = |pattern: &str, otherwise: &str| match pattern.strip_suffix('*') {
        _ if pattern.is_empty() => otherwise.to_owned(),
        Some(prefix) => format!("{prefix}, and more"),
        None => pattern.to_owned(),
    };
    let (user, originator) = (seen(&user, "no-other"), seen(&originator, "nothing"));
    let (user_agent, listener) = (seen(&user_agent, &agent(n)), seen(&listener, "nova"));
    let ip = ip.split('/').next().expect("a part before the slash");
    let ip: IpAddr = ip.parse().unwrap_or(Ipv4Addr::new(10, 0, 0, 1).into());
    Client {
        texts: [user, originator, user_agent, listener],
        ip: Some(ip),
    }
}

/// A client that matches nothing, but looks like those that do.
fn who_misses(n: u32) -> Client {
    Client {
        texts: [
            format!("visitor-{n}"),
            format!("elsewhere-{n}"),
            format!("python-requests/2.32.0 worker-{n:05}"),
            "poll".to_owned(),
        ],
        ip: Some(Ipv4Addr::from(0x0b00_0000 + n).into()),
    }
}

/// A thousand different clients, in an order that is no order.
fn clients(patterns: u32, client: impl Fn(u32) -> Client) -> Vec<Client> {
    (0..ROUNDS as u32)
        .map(|nth| client(nth.wrapping_mul(2_654_435_761) % patterns))
        .collect()
}

/// The time per round: of the median stretch, and of the shortest.
fn measure(what: &str, stretches: usize, rounds: usize, mut stretch: impl FnMut()) {
    let mut times: Vec<Duration> = (0..stretches)
        .map(|_| {
            let start = Instant::now();
            stretch();
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    let per_round = |time: Duration| time.as_nanos() as f64 / rounds as f64;
    let (median, least) = (per_round(times[stretches / 2]), per_round(times[0]));
    println!("{what:<72} {median:>10.0} ns, at least {least:>10.0} ns");
}

fn look_up_all(table: &CallerTable, clients: &[Client], matches: &mut Matches) {
    for client in clients {
        table.classify(black_box(&client.as_identity()), matches);
        black_box(matches.charged());
    }
}

/// The text that follows a flag on the command line.
fn argument(flag: &str) -> Option<String> {
    let mut arguments = std::env::args().skip_while(|argument| argument != flag);
    arguments.next()?;
    arguments.next()
}

/// The memory of this process that is in use.   bytes
fn resident() -> Option<usize> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: usize = statm.split(' ').nth(1)?.parse().ok()?;
    Some(pages * 4096)
}

/// A table of N rows that were registered automatically.
fn registered(rows: u32) -> CallerTable {
    let mut table = CallerTable::new(settings(AutoRegister::MAX, u16::MAX));
    let mut matches = Matches::default();
    for n in 0..rows {
        let client = who_matches(MIXES[n as usize % 2], n);
        let registration =
            table.classify_and_touch(Timestamp::ZERO, &client.as_identity(), &mut matches);
        assert!(matches!(registration, Registration::Registered { .. }));
    }
    table
}

fn measure_memory() {
    const ROWS: u32 = 10_000;
    let before = resident();
    let table = registered(ROWS);
    if let (Some(before), Some(after)) = (before, resident()) {
        let grown = after.saturating_sub(before);
        println!(
            "{ROWS} rows that registered themselves: {} KiB, {} bytes a row",
            grown / 1024,
            grown / table.registered(),
        );
    }
}

/// Every call comes from an agent that was never seen, and one of them in a hundred registers.
fn measure_rotation() {
    let mut table = CallerTable::new(settings(AutoRegister::MAX, 10));
    let (mut matches, mut n) = (Matches::default(), 0);
    let agents: Vec<String> = (0..ROUNDS).map(|nth| format!("agent-{nth:x}-")).collect();
    let mut rotate = |table: &mut CallerTable, pace: Duration| {
        let mut agent = String::new();
        let start = Instant::now();
        let mut spent = Duration::ZERO;
        for prefix in &agents {
            n += 1;
            agent.clear();
            agent.push_str(prefix);
            agent.push_str(&n.to_string());
            let identity = Identity {
                ip: Some(Ipv4Addr::new(10, 0, 0, 1).into()),
                user_agent: &agent,
                listener: "nova",
                ..Identity::default()
            };
            let now = Timestamp::ZERO + pace * n;
            black_box(table.classify_and_touch(now, &identity, &mut matches));
            spent = start.elapsed();
        }
        spent
    };
    let mut run = |what: &str, table: &mut CallerTable, pace| {
        let mut times: Vec<Duration> = (0..100).map(|_| rotate(table, pace)).collect();
        times.sort_unstable();
        let per_round = |time: Duration| time.as_nanos() as f64 / ROUNDS as f64;
        let (median, least) = (per_round(times[50]), per_round(times[0]));
        println!("{what:<72} {median:>10.0} ns, at least {least:>10.0} ns");
    };
    let second = Duration::from_secs(1);
    run(
        "fill: every call registers a new agent",
        &mut table,
        second / 10,
    );
    assert_eq!(table.registered(), 10_000);
    run(
        "full: every call registers one and forgets one",
        &mut table,
        second / 10,
    );
    run(
        "full: 1,000 new agents a second, 10 of them registered",
        &mut table,
        second / 1000,
    );
    assert_eq!(table.registered(), 10_000);
}

fn main() {
    let number = |flag| argument(flag).map(|given| given.parse().expect("a number"));
    let patterns: Option<u32> = number("--patterns");
    let mix = argument("--mix").unwrap_or_else(|| "mixed".to_owned());
    let mix = MIXES.into_iter().find(|known| known.name == mix);
    let mix = mix.expect("a mix of that name");
    if let Some(rows) = number("--registered") {
        println!("{} rows", registered(rows).registered());
        return;
    }
    if let Some(count) = number("--count") {
        let patterns = patterns.unwrap_or(10_000);
        let table = filled(mix, patterns);
        let clients = clients(patterns, |n| who_matches(mix, n));
        let mut matches = Matches::default();
        for client in clients.iter().cycle().take(count as usize) {
            table.classify(black_box(&client.as_identity()), &mut matches);
            black_box(matches.charged());
        }
        println!("{patterns} patterns, {count} look-ups");
        return;
    }
    // First of all, while the process has no freed memory to use again.
    measure_memory();
    let mut matches = Matches::default();
    for mix in MIXES {
        println!("{}: {}", mix.name, mix.about);
        for patterns in [10, 100, 1_000, 10_000] {
            let table = filled(mix, patterns);
            let (stretches, rounds) = if mix.name == "nested" {
                (20, 10)
            } else {
                (STRETCHES, ROUNDS)
            };
            let hits = clients(patterns, |n| who_matches(mix, n));
            measure(
                &format!("  {patterns:>6} patterns, hit"),
                stretches,
                rounds,
                || {
                    look_up_all(&table, &hits[..rounds], &mut matches);
                },
            );
            let misses = clients(patterns, who_misses);
            measure(
                &format!("  {patterns:>6} patterns, miss"),
                stretches,
                rounds,
                || {
                    look_up_all(&table, &misses[..rounds], &mut matches);
                },
            );
            if mix.name == "nested" {
                let worst = Client {
                    texts: [WORST, WORST, "someone", ""].map(str::to_owned),
                    ip: None,
                };
                let worst = vec![worst; rounds];
                measure(
                    &format!("  {patterns:>6} patterns, all but the last field"),
                    stretches,
                    rounds,
                    || {
                        look_up_all(&table, &worst, &mut matches);
                    },
                );
            }
        }
    }
    measure_rotation();
    let mut table = CallerTable::new(settings(AutoRegister::OFF, 0));
    let mixed = MIXES[4];
    let config: Vec<NewCaller> = (0..10_000)
        .map(|n| caller(n, &(mixed.pattern)(n)))
        .collect();
    measure("replace_static, 10000 rows by the same", 21, 1, || {
        let reloaded = table.replace_static(config.clone());
        black_box(reloaded).expect("a good config");
    });
    let mut table = registered(10_000);
    let hits = clients(10_000, |n| who_matches(MIXES[n as usize % 2], n));
    let mut now = Timestamp::ZERO;
    measure(
        "classify_and_touch, 10000 rows that registered themselves",
        STRETCHES,
        ROUNDS,
        || {
            for client in &hits {
                now = now + Duration::from_micros(1);
                black_box(table.classify_and_touch(now, &client.as_identity(), &mut matches));
            }
        },
    );
}

/// Begins with every prefix of the nested mix.
const WORST: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\
                     aaaaaaaaaaaaaaaaaaaaaaaa";
