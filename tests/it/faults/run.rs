//! A cell: a separate process with a separate backend is brought into a state, meets a fault, recovers, and is
//! checked.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::account::{Allowed, Broken, Evidence, Finding, Law};
use super::backend::{Backend, Mode, Recorder};
use super::client::{Attempt, Client, HUNG, Outcome, SMALL, Shape, Way, Wire};
use super::config::{self, Options};
use super::matrix::{Cell, Column, Row};
use super::stores::Stores;
use super::subject::{Subject, sum};
use super::tag::Tag;
use crate::faked_clock::FakedClock;
use crate::sidecar::TIDEGATE;

const HOUR: Duration = Duration::from_secs(3_600);

/// The result of a cell.
pub(super) struct Ran {
    pub(super) cell: Cell,
    pub(super) seen: String,
    pub(super) findings: Vec<Finding>,
    /// The end of the log, where something was found.
    pub(super) log: String,
}

/// The tried case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Under {
    Tidegate,
    /// The stand-in, with its fault.
    StandIn(super::stand_in::Wrong),
}

/// Fillings of a disk until no save under way makes room any more.
const SAVES_UNDER_WAY: u32 = 10;
/// The longest time without an answer of `/livez` in which the process is not called frozen.
const FROZEN: Duration = Duration::from_millis(1200);
/// How soon all is well after a fault: the longest pause between two tries of a backend, a
/// timeout of the config, and the pace of an idle machine that does much else.
const WELL_WITHIN: Duration = Duration::from_secs(10);
/// How much later than its client's end a call may arrive: the time in which a busy machine
/// carries an end through two processes.
const NOTICES_WITHIN: Duration = Duration::from_millis(300);
/// The bytes that a process may grow by in a cell.   bytes
const GROWTH: u64 = 16 << 20;

/// An address of loopback that no other cell has.
pub(super) fn own_ip() -> [u8; 4] {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let [_, _, high, low] = (number + 1).to_be_bytes();
    // Tests run in several processes at once.
    let process = (std::process::id() % 120) as u8;
    [127, 100 + process, high, low]
}

/// Gives tags out.
#[derive(Clone, Default)]
pub(super) struct Tags(Arc<AtomicU32>);

impl Tags {
    pub(super) fn next(&self) -> Tag {
        Tag(self.0.fetch_add(1, Ordering::Relaxed))
    }
}

struct Stage {
    cell: Cell,
    subject: Subject,
    /// The clocks of the process, if they step.
    clock: FakedClock,
    backend: Backend,
    /// Where a reload moves to.
    other: Option<Backend>,
    stores: Stores,
    recorder: Recorder,
    options: Options,
    tags: Tags,
    fault: watch::Sender<bool>,
    patience: Duration,
    attempts: Vec<Attempt>,
    extra: HashSet<Tag>,
    silent: Vec<u16>,
    findings: Vec<Finding>,
}

fn command(cell: Cell, under: Under, clock: &FakedClock) -> Command {
    if let Under::StandIn(wrong) = under {
        return super::stand_in::command(wrong);
    }
    if cell.column == Column::ClockStep {
        let mut command = clock.command(TIDEGATE);
        command.arg("serve");
        return command;
    }
    let script = match cell.column {
        Column::FewDescriptors => "ulimit -n 128; exec \"$0\" \"$@\"",
        Column::FullDisk => {
            "mkdir \"$FAULTS_FOLDER/disk\" && mount -t tmpfs -o size=6m tmpfs \"$FAULTS_FOLDER/disk\" \
             && exec \"$0\" \"$@\""
        }
        _ => {
            let mut command = Command::new(TIDEGATE);
            command.arg("serve");
            return command;
        }
    };
    let mut command = match cell.column {
        Column::FullDisk => {
            let mut command = Command::new("unshare");
            command.args(["-m", "sh"]);
            command
        }
        _ => Command::new("sh"),
    };
    command.args(["-c", script, TIDEGATE, "serve"]);
    command
}

/// The requirement of a cell that the machine lacks; `None` if it can be run.
pub(super) fn lacks(column: Column) -> Option<&'static str> {
    let tries = |command: &str, arguments: &[&str]| {
        let ran = std::process::Command::new(command)
            .args(arguments)
            .stderr(std::process::Stdio::null())
            .stdout(std::process::Stdio::null())
            .status();
        ran.is_ok_and(|it| it.success())
    };
    let mounts = "mount -t tmpfs -o size=64k tmpfs /mnt";
    (column == Column::FullDisk && !tries("unshare", &["-m", "sh", "-c", mounts]))
        .then_some("no small disk can be mounted here, which takes root")
}

pub(super) async fn run(cell: Cell, under: Under) -> Ran {
    match timeout(Duration::from_secs(120), run_to_its_end(cell, under)).await {
        Ok(ran) => ran,
        Err(_) => Ran {
            cell,
            seen: "the cell did not end within two minutes".to_owned(),
            findings: vec![Finding {
                broken: Broken::Hung,
                how: "the cell itself".to_owned(),
            }],
            log: String::new(),
        },
    }
}

async fn run_to_its_end(cell: Cell, under: Under) -> Ran {
    let recorder = Recorder::default();
    let backend = Backend::start(own_ip(), 0, recorder.clone()).await;
    let other = match cell.column {
        Column::BackendMoved => Some(Backend::start(own_ip(), 1, recorder.clone()).await),
        _ => None,
    };
    let stores = Stores::start(cell).await;
    let options = Options::of(cell, backend.addr, &stores);
    // An hour behind, so that it can step forward and back.
    let clock = FakedClock::new(HOUR, Duration::ZERO);
    let failed = |how: String| Ran {
        cell,
        seen: "it did not start".to_owned(),
        findings: vec![Finding {
            broken: Broken::Frozen,
            how: how.clone(),
        }],
        log: how,
    };
    let text = |folder: &Path| config::text(&options, folder);
    let subject = match Subject::start(command(cell, under, &clock), text).await {
        Ok(subject) => subject,
        Err(how) => return failed(how),
    };
    let mut stage = Stage {
        cell,
        subject,
        clock,
        backend,
        other,
        stores,
        recorder,
        options,
        tags: Tags::default(),
        fault: watch::Sender::new(false),
        patience: match under {
            Under::Tidegate => HUNG,
            // It hangs for ever or not at all.
            Under::StandIn(_) => Duration::from_secs(8),
        },
        attempts: Vec::new(),
        extra: HashSet::new(),
        silent: Vec::new(),
        findings: Vec::new(),
    };
    stage.play().await
}

impl Stage {
    fn found(&mut self, broken: Broken, how: impl Into<String>) {
        self.findings.push(Finding {
            broken,
            how: how.into(),
        });
    }

    fn client(&self, way: Way) -> Client {
        let fault = self.fault.subscribe();
        let mut client = Client::new(self.subject.addr, self.cell.wire, way, fault);
        client.patience = self.patience;
        client
    }

    /// Calls of N clients at once, all of which wait for their answers.
    async fn at_once(&mut self, clients: usize, shape: Shape) {
        let mut calls = JoinSet::new();
        for _ in 0..clients {
            let (mut client, tags) = (self.client(Way::Stays), self.tags.clone());
            calls.spawn(async move { client.call(tags.next(), tags.next(), shape).await });
        }
        while let Some(attempt) = calls.join_next().await {
            self.attempts
                .push(attempt.expect("a client does not panic"));
        }
    }

    async fn metric(&self, name: &str) -> f64 {
        let metrics = self.subject.metrics().await;
        metrics.map_or(f64::NAN, |it| sum(&it, name))
    }

    async fn play(&mut self) -> Ran {
        let (row, column) = (self.cell.row, self.cell.column);
        let load = row.load(self.cell.wire);
        let descriptors = self.subject.descriptors();
        // The memory of a process that has done such work before.
        self.at_once(4, load.shape).await;
        self.at_once(4, SMALL).await;
        if let Some(bad) = self
            .attempts
            .iter()
            .find(|it| it.outcome != Outcome::Served)
        {
            let how = format!("before any fault: {:?}", bad.outcome);
            self.found(Broken::Lost, how);
        }
        let memory = self.subject.memory();

        let stop = Arc::new(AtomicBool::new(false));
        let mut clients = self.load(&stop);
        let beside = self.beside(&stop);
        self.reach().await;
        let (started, drains) = (Instant::now(), row == Row::Draining);
        let is_to_answer = !matches!(column, Column::Stopped | Column::FewDescriptors) && !drains;
        let probe = is_to_answer
            .then(|| tokio::spawn(longest_silence(self.subject.admin, Arc::clone(&stop))));
        self.strike().await;
        sleep(Duration::from_millis(200)).await;
        stop.store(true, Ordering::Relaxed);
        while let Some(done) = clients.join_next().await {
            let (attempts, extra) = done.expect("a client does not panic");
            self.attempts.extend(attempts);
            self.extra.extend(extra);
        }
        for task in beside {
            // It ends by the same flag.
            let _ = task.await;
        }
        if let Some(probe) = probe {
            let silence = probe.await.expect("the probe does not panic");
            if silence > FROZEN {
                self.found(Broken::Frozen, format!("/livez took {silence:?}"));
            }
        }
        let lasted = started.elapsed();
        let counted = match drains {
            true => None,
            false => {
                self.recovers().await;
                self.is_at_rest(descriptors, memory).await
            }
        };
        self.ends(drains).await;
        self.account(counted, lasted)
    }

    /// Starts the load; each task returns its attempts, and the tags of further requests.
    fn load(&self, stop: &Arc<AtomicBool>) -> JoinSet<(Vec<Attempt>, Vec<Tag>)> {
        let load = self.cell.row.load(self.cell.wire);
        let mut clients = JoinSet::new();
        for number in 0..load.clients {
            let mut client = self.client(self.cell.column.way(number));
            let (tags, stop) = (self.tags.clone(), Arc::clone(stop));
            clients.spawn(async move {
                let (mut attempts, mut extra) = (Vec::new(), Vec::new());
                while !stop.load(Ordering::Relaxed) {
                    let (tag, more) = (tags.next(), tags.next());
                    let attempt = client.call(tag, more, load.shape).await;
                    let is_gone = attempt.outcome == Outcome::NoConnection;
                    let misbehaved = client.way != Way::Stays;
                    let is_rejected =
                        matches!(&attempt.outcome, Outcome::Refused(why) if why == "draining");
                    attempts.push(attempt);
                    if misbehaved {
                        extra.push(more);
                        sleep(Duration::from_millis(50)).await;
                    }
                    if is_gone || is_rejected {
                        // Nothing comes back from there at once.
                        sleep(Duration::from_millis(100)).await;
                    }
                    sleep(load.think).await;
                }
                client.closes();
                (attempts, extra)
            });
        }
        clients
    }

    /// Starts the work of the row beside calls.
    fn beside(&self, stop: &Arc<AtomicBool>) -> Vec<tokio::task::JoinHandle<()>> {
        let mut tasks = Vec::new();
        let (pid, admin) = (self.subject.pid, self.subject.admin);
        if self.cell.row == Row::Saving {
            let stop = Arc::clone(stop);
            tasks.push(tokio::spawn(async move {
                for number in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    make_caller(admin, &format!("saving{number}")).await;
                    sleep(Duration::from_millis(20)).await;
                }
            }));
        }
        if self.cell.row == Row::Reloading {
            let stop = Arc::clone(stop);
            let path = self.subject.folder.path().join("config.toml");
            tasks.push(tokio::spawn(async move {
                for number in 0_u32.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    // The rest of the file is unchanged: only one line differs.
                    let text = std::fs::read_to_string(&path).unwrap_or_default();
                    let (from, to) = config::TURNS;
                    let text = match number % 2 {
                        0 => text.replace(from, to),
                        _ => text.replace(to, from),
                    };
                    let beside = path.with_extension("turn");
                    if std::fs::write(&beside, text).is_ok() {
                        let _ = std::fs::rename(&beside, &path);
                    }
                    hang_up(pid);
                    sleep(Duration::from_millis(100)).await;
                }
            }));
        }
        tasks
    }

    /// Waits until the process does what the row says.
    async fn reach(&mut self) {
        let until = Instant::now() + WELL_WITHIN;
        loop {
            let running = self.recorder.running();
            let reached = match self.cell.row {
                Row::Idle => true,
                Row::StormJitter | Row::StormInTurn => {
                    self.metric("tidegate_queue_depth").await >= 4.0
                }
                Row::Up | Row::Down => running >= 1,
                Row::Full => self.metric("tidegate_queue_depth").await >= config::FULL as f64,
                Row::Draining => running >= 1 && self.metric("tidegate_queue_depth").await >= 1.0,
                Row::Reloading => self.subject.logged("config reloaded") >= 2,
                Row::Saving => std::fs::metadata(self.state_file()).is_ok(),
                Row::FailOver => running >= 1,
            };
            if reached {
                break;
            }
            if Instant::now() > until {
                self.found(Broken::Frozen, "the state of the row was never reached");
                return;
            }
            sleep(Duration::from_millis(5)).await;
        }
        match self.cell.row {
            // In the middle of a body.
            Row::Up | Row::Down => sleep(Duration::from_millis(150)).await,
            Row::Draining => {
                self.subject.signal("TERM");
                if let Err(how) = self.subject.logs("draining", 0).await {
                    self.found(Broken::Frozen, how);
                }
            }
            Row::FailOver => self.stores.kill_leader().await,
            Row::Idle
            | Row::StormJitter
            | Row::StormInTurn
            | Row::Full
            | Row::Reloading
            | Row::Saving => {}
        }
    }

    /// The state file as this process sees it, also where its disk is its own.
    fn state_file(&self) -> String {
        format!(
            "/proc/{}/root{}",
            self.subject.pid,
            config::state_file(&self.options, self.subject.folder.path()).display()
        )
    }

    /// Injects the fault, lets it last, and takes it back.
    async fn strike(&mut self) {
        let column = self.cell.column;
        let lasts = column.lasts();
        match column {
            Column::BackendFin => self.backend_is(Mode::Fin, lasts).await,
            Column::BackendRst => self.backend_is(Mode::Rst, lasts).await,
            Column::BackendHalfClose => self.backend_is(Mode::HalfClose, lasts).await,
            Column::BackendRestart => self.backend_is(Mode::Down, lasts).await,
            Column::BackendBlackHole => self.backend_is(Mode::BlackHole, lasts).await,
            Column::BackendSlowAccept => self.backend_is(Mode::SlowAccept, lasts).await,
            Column::BackendGarbage => self.backend_is(Mode::Garbage, lasts).await,
            Column::BackendEarly => self.backend_is(Mode::Early, lasts).await,
            Column::BackendMoved => self.move_backend(lasts).await,
            Column::ClientLeaves
            | Column::ClientHalfCloses
            | Column::ClientStalls
            | Column::ClientSendsMore => {
                if self.cell.row == Row::Idle {
                    self.odd_connections().await;
                }
                self.fault.send_replace(true);
                sleep(lasts).await;
                self.fault.send_replace(false);
            }
            Column::FewDescriptors => {
                let mut silent = Vec::new();
                for _ in 0..200 {
                    let connect = TcpStream::connect(self.subject.addr);
                    if let Ok(Ok(stream)) = timeout(Duration::from_millis(200), connect).await {
                        self.silent.extend(stream.local_addr().map(|it| it.port()));
                        silent.push(stream);
                    }
                }
                sleep(lasts).await;
            }
            Column::FullDisk => self.full_disk(lasts).await,
            Column::SlowFsync => self.slow_disk(lasts).await,
            Column::StalledLog => {
                self.subject.read_log(false);
                self.subject.fill_log();
                sleep(Duration::from_millis(100)).await;
                self.subject.signal("HUP");
                sleep(lasts).await;
                self.subject.read_log(true);
            }
            Column::ClockStep => {
                for behind in [Duration::ZERO, 2 * HOUR] {
                    self.clock.behind(behind, Duration::ZERO);
                    sleep(lasts / 2).await;
                }
            }
            Column::Stopped => {
                self.subject.signal("STOP");
                sleep(lasts).await;
                self.subject.signal("CONT");
            }
            Column::HangUps => {
                for number in 0..3 {
                    let (from, to) = config::TURNS;
                    let text = config::text(&self.options, self.subject.folder.path());
                    let text = if number % 2 == 0 {
                        text.replace(from, to)
                    } else {
                        text
                    };
                    let before = self.subject.logged("config reloaded");
                    self.subject.write_config(&text);
                    self.subject.signal("HUP");
                    if let Err(how) = self.subject.logs("config reloaded", before).await {
                        self.found(Broken::Frozen, how);
                    }
                    sleep(Duration::from_secs(1)).await;
                }
            }
            // The config says it from the start.
            Column::NoMemory => sleep(lasts).await,
            Column::StoreAway
            | Column::StoreSlow
            | Column::StoreWiped
            | Column::StoreDenied
            | Column::LeaseAway
            | Column::LeaseSlow
            | Column::LeaseWiped
            | Column::LeaseDenied => self.stores.strike(column, lasts).await,
        }
        if self.cell.row == Row::FailOver {
            self.stores.restart_member().await;
        }
    }

    async fn backend_is(&self, mode: Mode, lasts: Duration) {
        self.backend.set(mode).await;
        sleep(lasts).await;
        self.backend.set(Mode::Well).await;
    }

    async fn move_backend(&mut self, lasts: Duration) {
        let other = self.other.as_ref().expect("there is one").addr;
        self.options.backend = other;
        let text = config::text(&self.options, self.subject.folder.path());
        if let Err(how) = self.subject.reload(&text).await {
            self.found(Broken::Frozen, how);
            return;
        }
        // Messages sent before may still arrive.
        let moved = Instant::now() + NOTICES_WITHIN;
        sleep(lasts + 2 * NOTICES_WITHIN).await;
        self.at_once(4, SMALL).await;
        let arrivals = self.recorder.all();
        let astray = arrivals
            .iter()
            .filter(|it| it.backend == 0 && it.at > moved);
        let astray = astray.count();
        if astray > 0 {
            let how = format!("{astray} calls went to the old backend after the reload");
            self.found(Broken::Lost, how);
        }
    }

    /// Opens odd connections to a process that has no other work.
    async fn odd_connections(&mut self) {
        let half: &[u8] = match self.cell.wire {
            Wire::Http => b"GET /guests/T000",
            Wire::Socket => b"[\"guest_get_us",
            Wire::Tcp => b"T000",
        };
        let column = self.cell.column;
        for begins in [&b""[..], half] {
            for reset in [false, true] {
                let Ok(mut stream) = TcpStream::connect(self.subject.addr).await else {
                    self.found(Broken::Lost, "no connection to an idle process");
                    continue;
                };
                // It may have been closed already.
                let _ = stream.write_all(begins).await;
                sleep(Duration::from_millis(50)).await;
                match column {
                    Column::ClientLeaves if reset => {
                        let _ = stream.set_zero_linger();
                    }
                    Column::ClientHalfCloses => {
                        let _ = stream.shutdown().await;
                        self.is_closed(stream, Duration::from_secs(4)).await;
                    }
                    // request_timeout is 2 s.
                    Column::ClientStalls => {
                        self.is_closed(stream, Duration::from_secs(5)).await;
                    }
                    Column::ClientSendsMore => {
                        let _ = stream.write_all(b"\r\n\r\n\x00more").await;
                        self.is_closed(stream, Duration::from_secs(5)).await;
                    }
                    _ => {}
                }
            }
        }
    }

    async fn is_closed(&mut self, mut stream: TcpStream, within: Duration) {
        let mut rest = Vec::new();
        let reading = stream.read_to_end(&mut rest);
        // A tunnel is its backend's, which waits for the rest.
        let is_closed = timeout(within, reading).await.is_ok();
        if !is_closed && self.cell.wire != Wire::Tcp {
            self.found(
                Broken::Hung,
                "a connection without a request was not closed",
            );
        }
    }

    async fn full_disk(&mut self, lasts: Duration) {
        let folder = format!(
            "/proc/{}/root{}",
            self.subject.pid,
            self.subject.folder.path().join("disk").display()
        );
        let filler = Path::new(&folder).join("filler");
        let mut file = std::fs::File::create(&filler).expect("the disk is there");
        let mut fill = || {
            use std::io::Write as _;
            while file.write(&[0; 4096]).is_ok_and(|written| written > 0) {}
        };
        let is_made = |status: Option<u16>| status.is_some_and(|status| status < 300);
        // A save that is under way replaces the old file, and so makes room for the next one.
        let mut refused = None;
        for number in 0..SAVES_UNDER_WAY {
            fill();
            refused = make_caller(self.subject.admin, &format!("full{number}")).await;
            if !is_made(refused) {
                break;
            }
        }
        if is_made(refused) {
            self.found(
                Broken::ToldWrong,
                "a caller was made though the disk was full",
            );
        }
        if refused.is_none() {
            self.found(
                Broken::Hung,
                "a change had no answer though the disk was full",
            );
        }
        sleep(lasts).await;
        // An open file would keep its room.
        drop(file);
        std::fs::remove_file(&filler).expect("it is ours");
        self.makes_a_caller("the disk had room again").await;
    }

    async fn makes_a_caller(&mut self, when: &str) {
        let until = Instant::now() + WELL_WITHIN;
        for number in 0.. {
            let status = make_caller(self.subject.admin, &format!("after{number}")).await;
            if status.is_some_and(|status| status < 300) {
                return;
            }
            if Instant::now() > until {
                self.found(
                    Broken::Lost,
                    format!("no caller could be made after {when}"),
                );
                return;
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// To open a FIFO for writing takes as long as nothing reads it.
    async fn slow_disk(&mut self, lasts: Duration) {
        let state = config::state_file(&self.options, self.subject.folder.path());
        let mut beside = state.clone().into_os_string();
        beside.push(".new");
        // A save that is under way has the name.
        for _ in 0..100 {
            let _ = std::fs::remove_file(&beside);
            let made = std::process::Command::new("mkfifo")
                .arg(&beside)
                .stderr(std::process::Stdio::null())
                .status();
            if made.is_ok_and(|it| it.success()) {
                break;
            }
        }
        let admin = self.subject.admin;
        let saving = tokio::spawn(async move { make_caller(admin, "slow").await });
        sleep(Duration::from_millis(200)).await;
        self.subject.signal("HUP");
        sleep(lasts).await;
        let path = beside.clone();
        let reading = tokio::task::spawn_blocking(move || {
            let mut sink = Vec::new();
            let file = std::fs::File::open(&path);
            let _ = std::fs::remove_file(&path);
            if let Ok(mut file) = file {
                let _ = std::io::Read::read_to_end(&mut file, &mut sink);
            }
        });
        let _ = saving.await;
        let _ = timeout(Duration::from_secs(10), reading).await;
        let _ = std::fs::remove_file(&beside);
        self.makes_a_caller("the disk was quick again").await;
    }

    /// Calls are answered again, as many at once as may be.
    async fn recovers(&mut self) {
        let until = Instant::now() + WELL_WITHIN;
        loop {
            self.at_once(1, SMALL).await;
            let last = self.attempts.last().expect("there was a call");
            if last.outcome == Outcome::Served {
                break;
            }
            if Instant::now() > until {
                let how = format!("no call is answered after the fault: {:?}", last.outcome);
                self.found(Broken::Frozen, how);
                return;
            }
            // Each is one of those that a fault may cost; the answered one counts.
            sleep(Duration::from_millis(50)).await;
        }
        // All slots can be used.
        let wanted = self.options.in_flight;
        let shape = Shape {
            takes: Duration::from_millis(300),
            ..SMALL
        };
        let mut most = 0;
        while most < wanted && Instant::now() < until {
            let recorder = self.recorder.clone();
            let (done, watching) = tokio::sync::oneshot::channel::<()>();
            let peak = tokio::spawn(async move {
                let (mut peak, mut watching) = (0, watching);
                loop {
                    peak = peak.max(recorder.running());
                    if timeout(Duration::from_millis(2), &mut watching)
                        .await
                        .is_ok()
                    {
                        return peak;
                    }
                }
            });
            self.at_once(wanted, shape).await;
            let _ = done.send(());
            most = most.max(peak.await.expect("it does not panic"));
        }
        if most < wanted {
            self.found(
                Broken::LostSlot,
                format!("{most} of {wanted} slots can be used after the fault"),
            );
        }
    }

    async fn is_at_rest(&mut self, descriptors: usize, memory: u64) -> Option<(f64, f64)> {
        let allowed = descriptors + self.stores.links();
        let (counted, found) = at_rest(&self.subject, allowed, memory).await;
        self.findings.extend(found);
        counted
    }

    async fn ends(&mut self, drains: bool) {
        if self.subject.has_ended() && !drains {
            self.found(Broken::Frozen, "the process has ended");
            return;
        }
        if !drains {
            self.subject.signal("TERM");
        }
        match self.subject.ended(Duration::from_secs(15)).await {
            None => self.found(Broken::LeakedTask, "it does not end within 15 s"),
            Some((status, _)) if !status.success() => {
                self.found(Broken::LeakedTask, format!("it ends with {status}"));
            }
            Some(_) => {}
        }
    }

    fn account(&mut self, counted: Option<(f64, f64)>, lasted: Duration) -> Ran {
        let lines = self.subject.lines();
        let mut allowed: Allowed = self.cell.allowed();
        if self.findings.iter().any(|it| it.broken == Broken::Frozen) {
            // What a process that stands still costs is said once.
            allowed.no_connection = true;
        }
        let stopped = match self.cell.column {
            Column::Stopped => self.cell.column.lasts(),
            _ => Duration::ZERO,
        };
        let evidence = Evidence {
            wire: self.cell.wire,
            attempts: std::mem::take(&mut self.attempts),
            extra: std::mem::take(&mut self.extra),
            silent: std::mem::take(&mut self.silent),
            arrivals: self.recorder.all(),
            lines,
            law: Law {
                in_flight: self.options.in_flight,
                per_window: self.options.per_window,
                window: Duration::from_secs(1),
                gives_up: config::RESPONSE_TIMEOUT - Duration::from_millis(500),
            },
            allowed,
            notices_within: NOTICES_WITHIN + stopped,
            counted,
            has_log: true,
        };
        let mut findings = std::mem::take(&mut self.findings);
        findings.extend(evidence.findings());
        let log = match findings.is_empty() {
            true => String::new(),
            false => {
                let own = evidence.lines.iter();
                let own: Vec<&str> = own
                    .filter(|line| !line.contains("\"target\":\"access\"") && !line.is_empty())
                    .map(String::as_str)
                    .collect();
                own[own.len().saturating_sub(30)..].join("\n")
            }
        };
        Ran {
            cell: self.cell,
            seen: seen(&evidence, lasted),
            findings,
            log,
        }
    }
}

/// Waits until no call holds anything; returns its counts of calls and lost lines.
pub(super) async fn at_rest(
    subject: &Subject,
    descriptors: usize,
    memory: u64,
) -> (Option<(f64, f64)>, Vec<Finding>) {
    let mut findings = Vec::new();
    let mut found = |broken, how| findings.push(Finding { broken, how });
    let until = Instant::now() + WELL_WITHIN;
    let counted = loop {
        let metrics = subject.metrics().await;
        let held: Vec<String> = match &metrics {
            None => vec!["no metrics".to_owned()],
            Some(metrics) => [
                "tidegate_outstanding",
                "tidegate_queue_depth",
                "tidegate_connections",
                "tidegate_window_used",
                "tidegate_limiter_queued",
            ]
            .into_iter()
            .map(|name| (name, sum(metrics, name)))
            .filter(|(_, value)| *value != 0.0)
            .map(|(name, value)| format!("{name} is {value}"))
            .collect(),
        };
        if held.is_empty() {
            let metrics = metrics.expect("it was read");
            break Some((
                sum(&metrics, "tidegate_calls_total"),
                sum(&metrics, "tidegate_access_lines_lost_total"),
            ));
        }
        if Instant::now() > until {
            found(Broken::LostSlot, held.join(", "));
            break None;
        }
        sleep(Duration::from_millis(50)).await;
    };
    let mut now = subject.descriptors();
    while now > descriptors && Instant::now() < until {
        sleep(Duration::from_millis(50)).await;
        now = subject.descriptors();
    }
    if now > descriptors {
        let open = subject.open_files();
        let how = format!("{now} are open, {descriptors} were: {open:?}");
        found(Broken::LeakedDescriptor, how);
    }
    let now = subject.memory();
    if now > memory + GROWTH {
        let how = format!("{} kB more", (now - memory) / 1024);
        found(Broken::LeakedMemory, how);
    }
    (counted, findings)
}

/// The sight of clients and backend, in a line.
fn seen(evidence: &Evidence, lasted: Duration) -> String {
    use std::collections::BTreeMap;
    let mut outcomes: BTreeMap<String, usize> = BTreeMap::new();
    for attempt in &evidence.attempts {
        let name = match &attempt.outcome {
            Outcome::Served => "served".to_owned(),
            Outcome::Refused(reason) => format!("`{reason}`"),
            Outcome::Odd(_) => "odd".to_owned(),
            Outcome::Dropped => "closed".to_owned(),
            Outcome::Cut => "cut".to_owned(),
            Outcome::Left => "left".to_owned(),
            Outcome::NoConnection => "no connection".to_owned(),
            Outcome::Hung => "hung".to_owned(),
            Outcome::Foreign => "foreign".to_owned(),
            Outcome::Truncated => "truncated".to_owned(),
        };
        *outcomes.entry(name).or_default() += 1;
    }
    let longest = evidence.attempts.iter().map(|it| it.ended - it.began).max();
    let outcomes: Vec<String> = outcomes
        .into_iter()
        .map(|(name, count)| format!("{count} {name}"))
        .collect();
    format!(
        "{} calls in {:.1} s: {}; {} arrived; longest {:.1} s",
        evidence.attempts.len(),
        lasted.as_secs_f64(),
        outcomes.join(", "),
        evidence.arrivals.len(),
        longest.unwrap_or_default().as_secs_f64(),
    )
}

/// Asks `/livez` again and again; returns the longest time that an answer took.
async fn longest_silence(admin: std::net::SocketAddr, stop: Arc<AtomicBool>) -> Duration {
    let mut longest = Duration::ZERO;
    while !stop.load(Ordering::Relaxed) {
        let asked = Instant::now();
        let answer = super::subject::ask(admin, "GET", "/livez", "").await;
        longest = longest.max(match answer {
            Some(_) => asked.elapsed(),
            None => Duration::from_secs(5),
        });
        sleep(Duration::from_millis(50)).await;
    }
    longest
}

/// Makes a caller through the admin address; returns the status of the answer.
async fn make_caller(admin: std::net::SocketAddr, user: &str) -> Option<u16> {
    let body = format!("{{\"label\": \"{user}\", \"match\": {{\"user\": \"{user}\"}}}}");
    let answer = super::subject::ask(admin, "POST", "/v1/callers", &body).await?;
    answer.split(' ').nth(1)?.parse().ok()
}

fn hang_up(pid: u32) {
    let sent = std::process::Command::new("kill")
        .args(["-HUP", &pid.to_string()])
        .stderr(std::process::Stdio::null())
        .status();
    // It may have ended meanwhile.
    drop(sent);
}
