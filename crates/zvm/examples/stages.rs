//! The stages of a call that are pure, each many times over, so that callgrind counts their
//! instructions.
//!
//! `tests/it/instructions.rs` builds it, runs it twice with different numbers of turns, and
//! divides the difference: what a start costs cancels out. Each stage is a function of its own,
//! by whose name the count is found.

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use tidegate_callers::{
    AutoRegister, CallerTable, Charge, FieldSet, Identity, IdentityField, Ipv6Prefix, Label,
    Matches, NewCaller, Notes, Pattern, PatternText, TableSettings,
};
use tidegate_h1::request::RequestTarget;
use tidegate_h1::{request, response, write};
use tidegate_limits::call::Backend;
use tidegate_limits::policy::{
    ClassShare, LimitRule, Postpone, Scope, WhenFull, WindowShape, WindowStamp,
};
use tidegate_limits::scheduler::Outcome;
use tidegate_limits::{Call, Limit, Policy, Scheduler, Step, Timestamp};
use tidegate_zvm::framer::{FrameStatus, Framer};
use tidegate_zvm::{array, reply, routes};

/// A call of the socket protocol, in Python's form.
const CALL: &[u8] = b"[\"guest_get_info\", [\"HRX00001\"], {}]";
const CALL_MAX: usize = 64 * 1024;
/// The answer of the stand-in backend.
const REPLY: &[u8] =
    b"{\"overallRC\": 0, \"modID\": null, \"rc\": 0, \"rs\": 0, \"errmsg\": \"\", \"output\": \"ok\"}";
/// A request as nova's client sends it, and an answer of Apache.
const REQUEST: &[u8] = b"GET /guests/HRX00001/info HTTP/1.1\r\nHost: 10.0.0.1:8080\r\n\
    User-Agent: python-requests/2.31.0\r\nAccept-Encoding: gzip, deflate\r\nAccept: */*\r\n\
    Connection: keep-alive\r\nX-Auth-Token: 0123456789abcdef0123456789abcdef\r\n\r\n";
const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\nDate: Thu, 26 Nov 2026 18:00:00 GMT\r\n\
    Server: Apache/2.4.57\r\nContent-Length: 88\r\nKeep-Alive: timeout=5\r\n\
    Connection: Keep-Alive\r\nContent-Type: application/json\r\n\r\n";
/// Callers that are registered beside the one that calls.
const CALLERS: u32 = 100;

fn main() {
    let turns = std::env::args().nth(1).and_then(|it| it.parse().ok());
    let turns: u32 = turns.expect("usage: stages TURNS");
    let (table, mut matches) = (callers(), Matches::default());
    let mut scheduler = scheduler();
    let function: Arc<str> = "guest_get_info".into();
    let mut now = Timestamp::ZERO;
    for _ in 0..turns {
        framer();
        http_request();
        http_response();
        call_array();
        route();
        body();
        reply_end();
        caller(&table, &mut matches);
        // Slower than the window allows, so that its list of moments does not grow.
        now = now + Duration::from_millis(40);
        at_once(&mut scheduler, &function, now);
        now = now + Duration::from_millis(40);
        through_the_queue(&mut scheduler, &function, now);
    }
}

#[inline(never)]
fn framer() {
    let framed = Framer::new(CALL_MAX).push(black_box(CALL));
    assert!(matches!(black_box(framed), FrameStatus::End(_)));
}

#[inline(never)]
fn http_request() {
    let bounds = request::HeadBounds {
        fields: 128,
        bytes: 64 * 1024,
    };
    let read = request::read(black_box(REQUEST), bounds);
    let head = read.expect("it is usual").expect("it is whole");
    let mut written = Vec::with_capacity(512);
    let RequestTarget::Path(target) = head.target else {
        unreachable!("it is a path")
    };
    write::request_line(head.method.of(REQUEST), target.of(REQUEST), &mut written);
    write::fields(REQUEST, &head.fields, &mut written);
    black_box(written);
}

#[inline(never)]
fn http_response() {
    let read = response::read(black_box(RESPONSE), false, 256);
    let head = read.expect("it is good").expect("it is whole");
    let mut written = Vec::with_capacity(512);
    write::status_line(head.status, head.reason.of(RESPONSE), &mut written);
    write::fields(RESPONSE, &head.fields, &mut written);
    black_box(written);
}

#[inline(never)]
fn call_array() {
    let call = array::parse(black_box(CALL), CALL_MAX);
    assert!(black_box(call).is_ok());
}

#[inline(never)]
fn route() {
    black_box(routes::route(black_box("GET"), "/guests/HRX00001/info"));
}

#[inline(never)]
fn body() {
    let body = black_box(b"{\"action\": \"start\"}");
    assert!(black_box(routes::BodyRule::Action.function(body)).is_some());
}

#[inline(never)]
fn reply_end() {
    assert_eq!(
        reply::read(black_box(REPLY)),
        reply::ReplyEnding::Whole(Some(0))
    );
}

#[inline(never)]
fn caller(table: &CallerTable, matches: &mut Matches) {
    let identity = Identity {
        ip: Some(Ipv4Addr::new(10, 0, 0, 7).into()),
        user_agent: "python-requests/2.31.0",
        listener: "nova",
        ..Identity::default()
    };
    table.classify(black_box(&identity), matches);
    black_box(matches.charged());
}

#[inline(never)]
fn at_once(scheduler: &mut Scheduler<()>, function: &Arc<str>, now: Timestamp) {
    let call = Call::new(Arc::clone(function), now);
    let hold = scheduler.run_at_once(now, call);
    let hold = hold.expect("no call waits, and every limit is open");
    scheduler.sent(now, &hold);
    scheduler.finish(now, hold, Outcome::Served, None);
}

#[inline(never)]
fn through_the_queue(scheduler: &mut Scheduler<()>, function: &Arc<str>, now: Timestamp) {
    let call = Call::new(Arc::clone(function), now);
    black_box(scheduler.submit(now, call, ())).expect("there is room");
    let Step::Run { hold, .. } = scheduler.next(now, &mut || 0) else {
        unreachable!("every limit is open");
    };
    scheduler.sent(now, &hold);
    scheduler.finish(now, hold, Outcome::Served, None);
}

/// The limits of a sidecar before a z/VM host: everything, in flight, the backend, and a function.
fn scheduler() -> Scheduler<()> {
    let window = |max| Limit::Window {
        max,
        length: Duration::from_secs(1),
        guard: Duration::from_millis(5),
        shape: WindowShape::Sliding,
        stamp: WindowStamp::Sent,
    };
    let limits = vec![
        LimitRule::new("total", window(30)).scope(Scope::Every),
        LimitRule::new("outstanding", Limit::Outstanding { max: 10 }).scope(Scope::Every),
        LimitRule::new("backend", Limit::Outstanding { max: u32::MAX })
            .scope(Scope::Backend(Backend(0))),
        LimitRule::new("info", window(30)).scope(Scope::Function("guest_get_info".into())),
    ];
    let classes = vec![ClassShare::new("user", 10), ClassShare::new("polling", 1)];
    let policy = Policy::new(limits, 1_000, WhenFull::Refuse, Postpone::InTurn, classes);
    Scheduler::new(policy.expect("a policy"))
}

/// Callers with an address, an agent and a listener each.
fn callers() -> CallerTable {
    let mut table = CallerTable::new(TableSettings {
        auto_register: AutoRegister::OFF,
        auto_register_per_second: 0,
        identify: [
            IdentityField::Listener,
            IdentityField::Ip,
            IdentityField::UserAgent,
        ]
        .into_iter()
        .collect::<FieldSet>(),
        ipv6_prefix: Ipv6Prefix::default(),
    });
    for n in 0..CALLERS {
        let ip = Ipv4Addr::from(0x0a00_0000 + n).to_string();
        let pattern = PatternText {
            ip: &ip,
            user_agent: "python-requests/2.31.0",
            listener: "nova",
            ..PatternText::default()
        };
        let inserted = table.insert(NewCaller {
            label: Label::new(&format!("caller {n}")).expect("a label"),
            groups: Vec::new(),
            notes: Notes::default(),
            patterns: vec![Pattern::parse(&pattern).expect("a pattern")],
            charge: Charge::None,
            weight: None,
        });
        inserted.expect("a good caller");
    }
    table
}
