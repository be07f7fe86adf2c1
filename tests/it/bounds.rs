//! Every bound is reached: what exceeds it waits or is refused, and no call is lost.
//!
//! Other bounds stand with what they bound: the queue's in `queueing`, those of a reply in
//! `forwarding`, of a body in `http_semantics`, of a request in `bad_input`.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::sidecar::Sidecar;
use crate::support::{
    Held, OK, PATIENCE, Scripted, Stack, array, ask, json, one_listener, read_all, read_until,
    reset, until,
};

const REQUEST: &str = "GET /host HTTP/1.1\r\nHost: t\r\n\r\n";
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 16\r\n\r\n{\"overallRC\": 0}";

/// A config whose sections can be added to.
fn text(backend: impl ToString, server: &str, extra: &str, queue: &str, limits: &str) -> String {
    let addr = backend.to_string();
    format!(
        r#"
        [server]
        {server}
        [[listen]]
        name = "test"
        bind = "127.0.0.1:0"
        protocol = "auto"
        [backend]
        socket = "{addr}"
        kind = "zvm"
        http = "http://{addr}"
        {extra}
        [queue]
        postpone = "in_turn"
        {queue}
        [limits]
        per_window = "total:20000"
        {limits}
        [admin]
        bind = "127.0.0.1:0"
        "#
    )
}

async fn send(stack: &Stack, request: impl AsRef<[u8]>) -> TcpStream {
    let mut stream = TcpStream::connect(stack.addr).await.expect("it listens");
    stream.write_all(request.as_ref()).await.expect("it reads");
    stream
}

#[tokio::test]
async fn no_more_calls_than_workers_are_past_the_gate() {
    let mut held = Held::start(OK).await;
    let limits = "outstanding = 0";
    let stack = Stack::start(&text(held.backend.addr, "", "", "workers = 2", limits));
    let mut calls = Vec::new();
    for _ in 0..5 {
        calls.push(send(&stack, array("guest_get_info", "X")).await);
    }
    stack.busy(2, 3).await;
    held.next().await;
    held.next().await;
    assert!(held.got.try_recv().is_err(), "a third was sent");
    for number in (0..5).rev() {
        held.go.notify_one();
        stack.busy(number.min(2), number.saturating_sub(2)).await;
    }
    for call in &mut calls {
        assert_eq!(json(&read_all(call).await)["overallRC"], 0);
    }
}

#[tokio::test]
async fn no_more_unlimited_calls_than_allowed_are_past_the_gate() {
    let mut held = Held::start(ANSWER).await;
    let queue = "max_unlimited = 1";
    let stack = Stack::start(&text(held.backend.addr, "", "", queue, ""));
    let token = "POST /token HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\n\r\n";
    let mut first = send(&stack, token).await;
    stack.busy(1, 0).await;
    let mut second = send(&stack, token).await;
    stack.busy(1, 1).await;
    assert!(held.next().await.contains("/token"));
    // A call with limits does not wait for them.
    let mut third = send(&stack, REQUEST).await;
    assert!(held.next().await.contains("/host"));
    assert_eq!(stack.gate.busy(), (2, 1));
    for stream in [&mut first, &mut second, &mut third] {
        let answer = held.answer_until(read_until(stream, "0}")).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    assert_eq!(held.done(), 3);
}

#[tokio::test]
async fn no_more_idle_connections_are_kept_than_the_pool_may_hold() {
    for keep in [0, 2] {
        let open = Arc::new(AtomicUsize::new(0));
        let (all_in, wait) = watch::channel(0);
        let count = Arc::clone(&open);
        let backend = Scripted::start(move |_, mut stream| {
            let (count, all_in, mut wait) = (Arc::clone(&count), all_in.clone(), wait.clone());
            async move {
                count.fetch_add(1, Ordering::SeqCst);
                let mut request = [0; 1024];
                while stream.read(&mut request).await.unwrap_or(0) > 0 {
                    // Five at once, so that five connections are needed.
                    all_in.send_modify(|calls| *calls += 1);
                    let five = wait.wait_for(|&calls| calls >= 5);
                    five.await.map(drop).expect("we hold a sender");
                    if stream.write_all(ANSWER).await.is_err() {
                        break;
                    }
                }
                count.fetch_sub(1, Ordering::SeqCst);
            }
        })
        .await;
        // Long enough that only the bound closes one within the test.
        let extra = format!("pool_max_idle = {keep}\npool_idle_timeout = \"1h\"");
        let stack = Stack::start(&text(backend.addr, "", &extra, "", ""));
        let mut calls = Vec::new();
        for _ in 0..5 {
            calls.push(send(&stack, REQUEST).await);
        }
        for call in &mut calls {
            let answer = read_until(call, "0}").await;
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        }
        let is_open = || open.load(Ordering::SeqCst);
        until(|| is_open() == keep, || format!("{} open", is_open())).await;
        // Kept connections are used.
        let mut again = send(&stack, REQUEST).await;
        read_until(&mut again, "0}").await;
        until(|| is_open() == keep, || format!("{} open", is_open())).await;
    }
}

#[tokio::test]
async fn a_connection_above_the_cap_is_served_when_another_closes() {
    let held = Held::start(OK).await;
    let server = "max_connections = 3";
    let sidecar = Sidecar::start(&text(held.backend.addr, server, "", "", "")).await;
    let addr = sidecar.listener("test").await;
    let mut silent = Vec::new();
    for _ in 0..3 {
        silent.push(TcpStream::connect(addr).await.expect("it listens"));
    }
    let open = "tidegate_connections{listener=\"test\"}";
    connections(&sidecar, 3.0).await;
    let mut beyond = Vec::new();
    for _ in 0..3 {
        let mut stream = TcpStream::connect(addr).await.expect("the kernel takes it");
        stream
            .write_all(array("guest_get_info", "X").as_bytes())
            .await
            .expect("the kernel takes it");
        beyond.push(stream);
    }
    assert_eq!(sidecar.metric(open).await, 3.0);
    assert_eq!(sidecar.metric("tidegate_outstanding").await, 0.0);
    // One place serves them all, one after the other.
    silent.pop();
    for stream in &mut beyond {
        held.go.notify_one();
        assert_eq!(json(&read_all(stream).await)["overallRC"], 0);
        assert!(sidecar.metric(open).await <= 3.0);
    }
}

async fn connections(sidecar: &Sidecar, expected: f64) {
    let started = Instant::now();
    loop {
        let open = sidecar
            .metric("tidegate_connections{listener=\"test\"}")
            .await;
        if open == expected {
            return;
        }
        assert!(started.elapsed() < PATIENCE, "{open}, not {expected}");
    }
}

/// Through the whole process: on a socket listener, a full queue may hold the accept loop.
#[tokio::test]
async fn a_full_queue_refuses_or_holds_back_what_comes_over_the_socket() {
    for when_full in ["refuse", "wait"] {
        let mut held = Held::start(OK).await;
        let queue = format!("capacity = 2\nwhen_full = \"{when_full}\"");
        let limits = "outstanding = 1";
        let config =
            text(held.backend.addr, "", "", &queue, limits).replace("\"auto\"", "\"socket\"");
        let sidecar = Sidecar::start(&config).await;
        let addr = sidecar.listener("test").await;
        let mut calls = Vec::new();
        for number in 0..3 {
            let mut stream = TcpStream::connect(addr).await.expect("it listens");
            stream
                .write_all(array("guest_get_info", &format!("U{number}")).as_bytes())
                .await
                .expect("it reads");
            calls.push(stream);
            depth(&sidecar, number).await;
        }
        held.next().await;
        let mut beyond = TcpStream::connect(addr).await.expect("the kernel takes it");
        beyond
            .write_all(array("guest_get_info", "BEYOND").as_bytes())
            .await
            .expect("the kernel takes it");
        if when_full == "refuse" {
            let answer = json(&read_all(&mut beyond).await);
            assert_eq!(answer["overallRC"], 503, "{answer}");
            assert_eq!(answer["rs"], 1, "{answer}");
        } else {
            calls.push(beyond);
        }
        for call in &mut calls {
            held.go.notify_one();
            assert_eq!(json(&read_all(call).await)["overallRC"], 0, "{when_full}");
        }
    }
}

/// Waits until N calls wait.
async fn depth(sidecar: &Sidecar, calls: u32) {
    let started = Instant::now();
    loop {
        let depth = sidecar.metric("tidegate_queue_depth").await;
        let sent = sidecar.metric("tidegate_outstanding").await;
        if depth == f64::from(calls) && (calls > 0 || sent > 0.0) {
            return;
        }
        assert!(started.elapsed() < PATIENCE, "{depth}, not {calls}");
    }
}

/// How many connections a process may have, at most `wanted`: what the system allows, less
/// what else is open.
fn affordable(wanted: usize) -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").expect("it is Linux");
    let allowed: usize = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))
        .and_then(|line| line.split_whitespace().next()?.parse().ok())
        .unwrap_or(usize::MAX);
    let affordable = (allowed / 2).min(wanted);
    if affordable < wanted {
        println!("ulimit -n is {allowed}: only {affordable} of {wanted} connections");
    }
    affordable
}

/// Resident memory of a process.   MiB
fn resident_mib(pid: u32) -> u64 {
    resident_kib(pid) / 1024
}

/// Resident memory of a process.   KiB
fn resident_kib(pid: u32) -> u64 {
    status_kib(pid, "VmRSS:")
}

/// A figure of the status of a process.   KiB
fn status_kib(pid: u32, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let figure = line.and_then(|line| line.split_whitespace().next());
    figure.and_then(|it| it.parse().ok()).expect("a number")
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[tokio::test]
async fn memory_of_reading_ten_thousand_callers_returns_to_the_system() {
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
    let mut text = one_listener(nowhere, "", "[log]\nformat = \"json\"\n");
    for number in 0..10_000 {
        let (high, low) = (number / 256, number % 256);
        writeln!(
            text,
            "[[caller]]\nlabel = \"c{number}\"\ngroups = [\"team{low}\"]\n\
             match = {{ user = \"u{number}\", ip = \"10.0.{high}.{low}\" }}"
        )
        .expect("it fits");
    }
    let sidecar = Sidecar::start(&text).await;
    let started = Instant::now();
    // Free memory is returned after 10 s.
    while status_kib(sidecar.pid, "RssAnon:") > 60 << 10 {
        let kib = status_kib(sidecar.pid, "RssAnon:");
        assert!(started.elapsed() < 2 * PATIENCE, "{kib} KiB are kept");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_holds_ten_thousand_keep_alive_connections_and_answers_every_one() {
    let count = affordable(10_000);
    let (open, gate) = watch::channel(false);
    let answered = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&answered);
    let backend = Scripted::start(move |_, mut stream| {
        let (mut gate, answered) = (gate.clone(), Arc::clone(&counter));
        async move {
            let mut request = [0; 1024];
            while stream.read(&mut request).await.unwrap_or(0) > 0 {
                if gate.wait_for(|&open| open).await.is_err() {
                    return;
                }
                answered.fetch_add(1, Ordering::SeqCst);
                if stream.write_all(ANSWER).await.is_err() {
                    return;
                }
            }
        }
    })
    .await;
    let queue = "capacity = 100\nwhen_full = \"wait\"";
    let limits = "outstanding = 50\nmax_wait = \"600s\"";
    let config = text(backend.addr, "", "", queue, limits) + "[log]\naccess = false\n";
    let sidecar = Sidecar::start(&config).await;
    let addr = sidecar.listener("test").await;
    let started = Instant::now();

    let connecting = Arc::new(Semaphore::new(500));
    let mut clients = JoinSet::new();
    for _ in 0..count {
        let connecting = Arc::clone(&connecting);
        clients.spawn(async move {
            let turn = connecting.acquire().await.expect("it stays open");
            let mut stream = TcpStream::connect(addr).await.expect("it listens");
            stream
                .write_all(REQUEST.as_bytes())
                .await
                .expect("it reads");
            drop(turn);
            let mut answer = vec![0; ANSWER.len() + 256];
            let mut read = 0;
            while !answer[..read].ends_with(b"{\"overallRC\": 0}") {
                match stream.read(&mut answer[read..]).await.expect("no reset") {
                    0 => panic!("{:?}", String::from_utf8_lossy(&answer[..read])),
                    more => read += more,
                }
            }
            assert!(answer.starts_with(b"HTTP/1.1 200"));
            stream
        });
    }
    // No call is answered before all have arrived: 50 at the backend, 100 in the queue, the rest at
    // the door.
    let waiting = (count - 50) as f64;
    while sidecar.metric("tidegate_queue_depth").await != waiting {
        assert!(started.elapsed() < 4 * PATIENCE, "not all came in");
    }
    assert_eq!(sidecar.metric("tidegate_outstanding").await, 50.0);
    let queue = json(&sidecar.get("/v1/queue").await.1);
    assert_eq!(queue["depth"], 100, "{queue}");
    assert_eq!(queue["door"], count - 150);
    let (all_in, memory) = (started.elapsed(), resident_mib(sidecar.pid));
    assert_eq!(answered.load(Ordering::SeqCst), 0);

    open.send_replace(true);
    let kept: Vec<TcpStream> = tokio::time::timeout(4 * PATIENCE, clients.join_all())
        .await
        .expect("every one is answered");
    println!(
        "{count} connections in after {all_in:.1?} with {memory} MiB, answered after {:.1?}",
        started.elapsed()
    );
    assert_eq!(answered.load(Ordering::SeqCst), count);
    assert_eq!(sidecar.metric("tidegate_outstanding_peak").await, 50.0);
    // Kept alive, every one: the last is as good as the first.
    let count = count as f64;
    let open = "tidegate_connections{listener=\"test\"}";
    assert_eq!(sidecar.metric(open).await, count);
    // A reset leaves no port behind that another test would wait for.
    kept.into_iter().for_each(reset);
}

#[tokio::test]
async fn bodies_of_calls_that_wait_are_not_held_beyond_their_bound() {
    const CALLS: u32 = 100;
    let (open, gate) = watch::channel(false);
    let backend = Scripted::start(move |_, mut stream| {
        let mut gate = gate.clone();
        async move {
            let mut body = Vec::new();
            while stream.read_buf(&mut body).await.unwrap_or(0) > 0 {
                if gate.wait_for(|&open| open).await.is_err() {
                    return;
                }
                if body.ends_with(b"\r\n0\r\n\r\n") {
                    let whole = body.len() > 1 << 20;
                    assert!(whole, "{} bytes", body.len());
                    body.clear();
                    if stream.write_all(ANSWER).await.is_err() {
                        return;
                    }
                }
            }
        }
    })
    .await;
    let limits = "outstanding = 1";
    let sidecar = Sidecar::start(&text(backend.addr, "", "", "", limits)).await;
    let addr = sidecar.listener("test").await;
    let before = resident_mib(sidecar.pid);
    let mut clients = JoinSet::new();
    for _ in 0..CALLS {
        clients.spawn(async move {
            let mut stream = TcpStream::connect(addr).await.expect("it listens");
            // No length is sent, so that the reader must find the end.
            let head =
                "POST /guests HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n100000\r\n";
            let body = vec![b'x'; 1 << 20];
            for part in [head.as_bytes(), &body, b"\r\n0\r\n\r\n"] {
                stream.write_all(part).await.expect("it reads in the end");
            }
            read_until(&mut stream, "0}").await
        });
    }
    depth(&sidecar, CALLS - 1).await;
    let held = resident_mib(sidecar.pid) - before;
    println!("{held} MiB for {CALLS} bodies of 1 MiB");
    // 64 KiB of each, as configured, and at most one read more.
    assert!(held < 40, "{held} MiB for {CALLS} bodies of 1 MiB");
    open.send_replace(true);
    for answer in clients.join_all().await {
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}

/// Holds `clients` calls in the queue, each with this request. Returns the memory of each in KiB.
async fn held_each(clients: u32, request: Vec<u8>) -> u64 {
    // Takes the first call, and never answers it.
    let backend = Scripted::start(|_, mut stream| async move {
        let mut scrap = vec![0; 64 * 1024];
        while stream.read(&mut scrap).await.unwrap_or(0) > 0 {}
    })
    .await;
    let limits = "outstanding = 1";
    // Memory that is free goes back to the system at once, so that only what is held counts.
    let config = text(backend.addr, "", "", "", limits);
    let sidecar = Sidecar::start_with(&config, |binary| {
        let mut command = Command::new(binary);
        command.env("_RJEM_MALLOC_CONF", "dirty_decay_ms:0,muzzy_decay_ms:0");
        command
    })
    .await;
    let addr = sidecar.listener("test").await;
    let request = Arc::new(request);
    let send = || {
        let request = Arc::clone(&request);
        async move {
            let mut stream = TcpStream::connect(addr).await.expect("it listens");
            stream.write_all(&request).await.expect("it reads");
            stream
        }
    };
    // One runs, a few wait: one-time allocations are done.
    let mut streams = Vec::new();
    for _ in 0..10 {
        streams.push(send().await);
    }
    depth(&sidecar, 9).await;
    let before = resident_kib(sidecar.pid);
    for _ in 0..clients {
        streams.push(send().await);
    }
    depth(&sidecar, 9 + clients).await;
    (resident_kib(sidecar.pid) - before) / u64::from(clients)
}

#[tokio::test]
async fn a_body_that_waits_takes_the_memory_of_its_bytes() {
    const BODY: usize = 60_000;
    // In debug builds a chunk takes microseconds, and there are 6,000 in a body.
    const CLIENTS: u32 = 100;
    let head = "POST /guests HTTP/1.1\r\nHost: t\r\n";
    let with_length = |length: usize| {
        let mut request = format!("{head}Content-Length: {length}\r\n\r\n").into_bytes();
        request.resize(request.len() + length, b'x');
        request
    };
    let mut chunked = format!("{head}Transfer-Encoding: chunked\r\n\r\n").into_bytes();
    for _ in 0..BODY / 10 {
        chunked.extend_from_slice(b"A\r\n0123456789\r\n");
    }
    chunked.extend_from_slice(b"0\r\n\r\n");
    // What a connection and its call take without a body to speak of.
    let without = held_each(CLIENTS, with_length(2)).await;
    let told = held_each(CLIENTS, with_length(BODY)).await - without;
    let chunked = held_each(CLIENTS, chunked).await - without;
    println!(
        "{without} KiB for a call, {told} KiB for a body of {BODY} bytes, {chunked} KiB in chunks"
    );
    // The allocator rounds 59 KiB up to 64, and the connection reads into 8 KiB.
    for held in [told, chunked] {
        assert!(held < 80, "{held} KiB for a body of {BODY} bytes");
    }
}

/// CPU time that a process has used.
fn cpu(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    // The second field is the command's name, in brackets, with any byte in it.
    let (_, fields) = stat.rsplit_once(')').expect("a name in brackets");
    let ticks: u64 = fields
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(|field| field.parse::<u64>().expect("a number"))
        .sum();
    // USER_HZ is 100 on every Linux there is.
    Duration::from_millis(ticks * 10)
}

#[tokio::test]
async fn without_file_descriptors_it_neither_ends_nor_spins() {
    let held = Held::start(OK).await;
    let config = text(held.backend.addr, "", "", "", "");
    let sidecar = Sidecar::start_with(&config, |binary| {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -n 64; exec \"$0\" \"$@\"", binary]);
        command
    })
    .await;
    let addr = sidecar.listener("test").await;
    // A connection that was accepted in time calls; those that wait take no descriptor from it.
    let mut early = TcpStream::connect(addr).await.expect("it listens");
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(TcpStream::connect(addr).await.expect("the kernel takes it"));
    }
    early
        .write_all(array("guest_get_info", "EARLY").as_bytes())
        .await
        .expect("it is open");
    held.go.notify_one();
    assert_eq!(json(&read_all(&mut early).await)["overallRC"], 0);

    // With nothing to do but wait for a descriptor, it uses no CPU.
    let used = cpu(sidecar.pid);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let used = cpu(sidecar.pid) - used;
    assert!(
        used < Duration::from_millis(250),
        "{used:?} of CPU in a second"
    );

    drop(silent);
    let mut late = TcpStream::connect(addr).await.expect("it listens");
    late.write_all(array("guest_get_info", "LATE").as_bytes())
        .await
        .expect("it reads");
    held.go.notify_one();
    assert_eq!(json(&read_all(&mut late).await)["overallRC"], 0);
    assert_eq!(sidecar.metric("tidegate_accept_errors_total").await, 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn code_that_only_a_start_or_a_reload_needs_is_not_mapped_at_rest() {
    let backend = Scripted::in_both_dialects().await;
    let text = one_listener(backend.addr, "", "");
    let sidecar = Sidecar::start(&text).await;
    let pid = sidecar.pid;
    // What a start has mapped of a program without optimisation is more than this.
    let is_small = || resident_kib(pid) + 1024 < status_kib(pid, "VmHWM:");
    for moment in ["the start", "a reload"] {
        until(is_small, || format!("unmapped code after {moment}")).await;
        // The most so far is from now on what it has now.
        std::fs::write(format!("/proc/{pid}/clear_refs"), "5").expect("it is ours");
        let answer = ask(sidecar.listener("test").await, array("guest_get_info", "X")).await;
        assert_eq!(json(&answer)["overallRC"], 0, "{answer}");
        sidecar.reload(&text).await;
    }
}
