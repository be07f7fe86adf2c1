//! Calls wait for a rate limit while it changes, is deleted, or their client leaves.

use super::*;

/// A door where N calls wait for the rate limit r1, in turn.
async fn waiting(calls: usize) -> (Arc<Door>, JoinSet<()>) {
    let door = Arc::new(Door::open(""));
    let mut new = NewRateLimit::of(size(1.0, 0.01));
    new.handling.deadline = tidegate::call::claim::ClaimDeadline::None;
    let now = door.clock.now();
    let id = door.change(door.callers.create_rate_limit(now, new));
    assert_eq!(id, RateLimitId(1));
    door.change(door.callers.create(named("poller", "poll*", Some(id))));
    let mut set = JoinSet::new();
    for number in 0..=calls {
        let door = Arc::clone(&door);
        let identity = who(&format!("poll/{}", number % 50));
        set.spawn(async move { door.pass(&identity, "guest_list").await });
    }
    let what = || format!("{:?}", door.gate.busy());
    support::until(|| door.gate.busy() == (0, calls), what).await;
    (door, set)
}

#[tokio::test(start_paused = true)]
async fn a_patch_with_a_thousand_waiting_keeps_tokens_and_calls() {
    let (door, calls) = waiting(1000).await;
    let tokens = door.tokens(1);
    let patch = |fill| RateLimitPatch {
        size: Some(SizePatch::Bucket {
            burst: None,
            fill: Some(Fill::new(fill).expect("a fill rate")),
        }),
        ..RateLimitPatch::default()
    };
    for fill in [500.0, 1000.0] {
        door.change(door.callers.patch_rate_limit(RateLimitId(1), patch(fill)));
    }
    assert!(
        (door.tokens(1) - tokens).abs() < 1e-6,
        "nothing is refunded"
    );
    assert_eq!(door.gate.busy(), (0, 1000));
    let started = Instant::now();
    calls.join_all().await;
    let took = started.elapsed().as_secs_f64();
    assert!(
        (took - 1.0).abs() < 0.01,
        "1,000 at 1,000 a second: {took} s"
    );
}

#[tokio::test(start_paused = true)]
async fn a_deletion_with_a_thousand_waiting_loses_no_call() {
    let (door, calls) = waiting(1000).await;
    door.change(door.callers.delete_rate_limit(RateLimitId(1)));
    let started = Instant::now();
    assert_eq!(calls.join_all().await.len(), 1001);
    assert_eq!(started.elapsed(), Duration::ZERO, "nothing else holds them");
    assert_eq!(door.gate.bucket_now(RateLimitId(1).bucket()), None);
    let caller = door.callers.all(door.clock.now());
    let poller = caller.iter().find(|it| it.row.name() == "poller");
    assert_eq!(poller.expect("it stays").row.charge.limit(), None);
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_task_panics_gives_back_its_hold_and_stops_no_other() {
    let door = Arc::new(Door::open(
        "[[bucket]]\nname = \"ten\"\nburst = 1\nfill = 10\n\
         [[caller]]\nlabel = \"all\"\nmatch = { listener = \"nova\" }\nrate_limit = \"ten\"",
    ));
    // Every third panics as soon as it is let through, before its bytes have left; every third
    // right after; the others are as they should be.
    let mut calls = JoinSet::new();
    for number in 0..30 {
        let door = Arc::clone(&door);
        calls.spawn(async move {
            let (came, _record) = door.call(&who("poll"), "guest_list").await;
            let Came::Through(mut permit) = came else {
                panic!("it was refused");
            };
            assert_ne!(number % 3, 0, "as the test wants it");
            permit.sent();
            assert_ne!(number % 3, 1, "as the test wants it");
            permit.finish(Outcome::Served);
        });
    }
    let started = Instant::now();
    let mut served = 0;
    while let Some(ended) = calls.join_next().await {
        served += usize::from(ended.is_ok());
    }
    assert_eq!(served, 10);
    assert_eq!(door.gate.busy(), (0, 0), "nothing is held any more");
    // Ten never left and drew nothing, so twenty tokens were spent: one at once, nineteen more.
    let took = started.elapsed().as_secs_f64();
    assert!((took - 1.9).abs() < 0.02, "{took} s");
    door.pass(&who("poll"), "guest_list").await;
}

#[tokio::test(start_paused = true)]
async fn calls_that_wait_for_a_limit_that_is_deleted_are_charged_to_the_next_match() {
    let (door, calls) = waiting(100).await;
    let now = door.clock.now();
    let wider = NewRateLimit::of(size(1.0, 100.0));
    let wider = door.change(door.callers.create_rate_limit(now, wider));
    let everybody = PatternText {
        listener: "nova",
        ..PatternText::default()
    };
    let everybody = NewCaller {
        patterns: vec![Pattern::parse(&everybody).expect("a pattern")],
        ..named("everybody", "-", Some(wider))
    };
    door.change(door.callers.create(everybody));
    door.change(door.callers.delete_rate_limit(RateLimitId(1)));
    let started = Instant::now();
    calls.join_all().await;
    let took = started.elapsed().as_secs_f64();
    assert!((took - 0.99).abs() < 0.01, "100 at 100 a second: {took} s");
}

/// Has N calls wait for the rate limit r1, changes something, and returns how long they wait
/// after that.
async fn left_to_wait(change: impl FnOnce(&Door, CallerId)) -> f64 {
    let (door, calls) = waiting(100).await;
    let all = door.callers.all(door.clock.now());
    let poller = all.iter().find(|it| it.row.name() == "poller");
    change(&door, poller.expect("it was made").row.id);
    let started = Instant::now();
    calls.join_all().await;
    started.elapsed().as_secs_f64()
}

#[tokio::test(start_paused = true)]
async fn a_change_of_who_is_charged_holds_for_calls_that_wait_as_for_new_ones() {
    let limit = RateLimitId(1);
    let detached = left_to_wait(|door, poller| {
        door.change(door.callers.detach(limit, poller));
    });
    assert_eq!(detached.await, 0.0, "detached");
    let deleted = left_to_wait(|door, poller| {
        door.change(door.callers.delete(poller));
    });
    assert_eq!(deleted.await, 0.0, "the caller is deleted");
    let patched = left_to_wait(|door, poller| {
        let patch = Patch {
            charge: Some(Charge::None),
            ..Patch::default()
        };
        door.change(door.callers.patch(poller, patch));
    });
    assert_eq!(patched.await, 0.0, "patched");
    let moved = left_to_wait(|door, poller| {
        let now = door.clock.now();
        let wider = NewRateLimit::of(size(1.0, 100.0));
        let wider = door.change(door.callers.create_rate_limit(now, wider));
        door.change(door.callers.attach(wider, poller));
    });
    let moved = moved.await;
    assert!(
        (moved - 0.99).abs() < 0.01,
        "100 at 100 a second: {moved} s"
    );
    let exempt = left_to_wait(|door, _| {
        let patch = RateLimitPatch {
            size: Some(SizePatch::Exempt),
            ..RateLimitPatch::default()
        };
        door.change(door.callers.patch_rate_limit(limit, patch));
    });
    assert_eq!(exempt.await, 0.0, "exempt");
}

#[tokio::test(start_paused = true)]
async fn calls_that_wait_are_refused_once_their_rate_limit_lets_no_call_wait() {
    let door = Arc::new(Door::open(""));
    let now = door.clock.now();
    let limit = NewRateLimit::of(size(3.0, 1.0));
    let limit = door.change(door.callers.create_rate_limit(now, limit));
    door.change(door.callers.create(named("poller", "poll*", Some(limit))));
    for _ in 0..3 {
        door.pass(&who("poll"), "guest_list").await;
    }
    let mut calls = JoinSet::new();
    for _ in 0..10 {
        let door = Arc::clone(&door);
        calls.spawn(async move { door.call(&who("poll"), "guest_list").await });
    }
    let what = || format!("{:?}", door.gate.busy());
    support::until(|| door.gate.busy() == (0, 10), what).await;
    let patch = RateLimitPatch {
        handling: HandlingPatch {
            on_excess: Some(OnExcess::Reject),
            ..HandlingPatch::default()
        },
        ..RateLimitPatch::default()
    };
    let started = Instant::now();
    door.change(door.callers.patch_rate_limit(limit, patch));
    for (came, _record) in calls.join_all().await {
        let Came::Refused(refusal) = came else {
            panic!("it was let through");
        };
        assert_eq!(refusal.reason, Reason::RateLimited);
    }
    assert_eq!(started.elapsed(), Duration::ZERO);
    assert_eq!(door.gate.busy(), (0, 0));
    let bucket = door.gate.bucket_now(limit.bucket()).expect("it is there");
    assert_eq!((bucket.waiting, bucket.counts.rejected), (0, 10));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_the_queue_spends_no_token() {
    let (door, calls) = waiting(100).await;
    let before = door.tokens(1);
    drop(calls);
    let what = || format!("{:?}", door.gate.busy());
    support::until(|| door.gate.busy() == (0, 0), what).await;
    let bucket = door.gate.bucket_now(RateLimitId(1).bucket());
    let bucket = bucket.expect("it is there");
    assert_eq!((bucket.waiting, bucket.counts.charged), (0, 1));
    assert!(bucket.tokens >= before);
}

#[tokio::test]
async fn a_client_that_leaves_the_queue_is_never_sent_and_spends_nothing() {
    let mut backend = Held::start(OK).await;
    let more = r#"
        [[bucket]]
        name = "slow"
        burst = 1
        fill = 0.001
        max_wait = "none"
        [[caller]]
        label = "everybody"
        match = { listener = "nova" }
        rate_limit = "slow"
    "#;
    let stack = Stack::start(&text(backend.backend.addr, more));
    let mut first = TcpStream::connect(stack.addr).await.expect("it listens");
    send(&mut first, &array("guest_list", "A")).await;
    backend.next().await;
    let mut second = TcpStream::connect(stack.addr).await.expect("it listens");
    send(&mut second, &array("guest_list", "B")).await;
    stack.busy(1, 1).await;
    drop(second);
    stack.busy(1, 0).await;
    backend.go.notify_one();
    read_all(&mut first).await;
    let facts = stack.seen.ended(2).await;
    let aborted = facts.iter().find(|it| it.verdict == Verdict::Aborted);
    assert_eq!(aborted.expect("the second").sent, None);
    let bucket = stack.gate.bucket_now(RateLimitId(1).bucket());
    assert_eq!(bucket.expect("it is there").counts.charged, 1);
}

async fn send(stream: &mut TcpStream, text: &str) {
    use tokio::io::AsyncWriteExt;
    stream.write_all(text.as_bytes()).await.expect("it reads");
}

#[tokio::test(start_paused = true)]
async fn a_limit_without_a_deadline_serves_everybody_in_the_end() {
    let (door, calls) = waiting(3).await;
    let started = Instant::now();
    calls.join_all().await;
    let took = started.elapsed().as_secs_f64();
    assert!(
        (took - 300.0).abs() < 1.0,
        "far beyond max_wait, 60 s: {took} s"
    );
    assert!(door.tokens(1) < 1.0);
}
