use std::future::pending;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::advance;

use super::*;
use crate::call::Progress;

const MINUTE: Duration = Duration::from_secs(60);

/// An answer of these bytes.
fn an_answer(body: impl Into<Bytes>) -> BufferedReply {
    BufferedReply {
        head: None,
        body: body.into(),
    }
}

fn tasks() -> Tasks {
    let settings = TaskSettings {
        enabled: true,
        tasks_max: 5,
        tasks_per_caller_max: 3,
        bytes_max: 100,
        bytes_per_caller_max: 60,
        time_to_live: MINUTE,
    };
    Tasks::new(settings, Clock::of_runtime())
}

fn owner(key: &str) -> Owner {
    Owner::new(key)
}

/// A different one for each key.
fn caller(key: &str) -> CallerId {
    let mut number = [0; 4];
    for (at, byte) in key.bytes().enumerate() {
        number[at % 4] ^= byte;
    }
    CallerId(u32::from_le_bytes(number).into())
}

impl Watch for Progress {
    fn is_admitted(&self) -> bool {
        Self::is_admitted(self)
    }

    fn refusal_now(&self) -> Option<Refusal> {
        None
    }
}

fn submission(key: &str, bytes: usize) -> Submission {
    Submission {
        owner: owner(key),
        caller: caller(key),
        call: 7,
        function: "guest_list".into(),
        bytes,
    }
}

fn watch(progress: &Arc<Progress>) -> Arc<dyn Watch> {
    Arc::<Progress>::clone(progress)
}

fn submit<F>(
    tasks: &Tasks,
    key: &str,
    work: impl FnOnce(Arc<Progress>) -> F + Send + 'static,
) -> Result<TaskId, TaskRejection>
where
    F: Future<Output = Vec<u8>> + Send + 'static,
{
    let progress = Arc::new(Progress::default());
    let submitted = tasks.submit(submission(key, 0), watch(&progress), |_| {
        let result = work(progress);
        async move { Ok(an_answer(result.await)) }
    });
    submitted.map(|submitted| submitted.id)
}

/// The expected counts with one answered task and nothing else.
fn one_answered() -> TasksNow {
    TasksNow {
        counted: EndedTaskCounts {
            answered: 1,
            ..EndedTaskCounts::default()
        },
        ..TasksNow::default()
    }
}

/// Whether it had not ended.
fn cancel(tasks: &Tasks, key: &str, id: TaskId) -> Result<bool, MissingTask> {
    let begun = tasks.begin_to_cancel(&owner(key), id);
    begun.map(|left| left.is_some())
}

async fn settled() {
    for _ in 0..20 {
        yield_now().await;
    }
}

/// Submits a future that ends at once with this many bytes, and waits for it.
async fn done(tasks: &Tasks, key: &str, bytes: usize) -> Result<TaskId, TaskRejection> {
    let id = submit(tasks, key, move |_| async move { vec![b'x'; bytes] })?;
    settled().await;
    Ok(id)
}

fn endless(tasks: &Tasks, key: &str) -> Result<TaskId, TaskRejection> {
    submit(tasks, key, |_| pending())
}

/// The state as a word.
fn state(tasks: &Tasks, key: &str, id: TaskId) -> String {
    match tasks.get(&owner(key), id) {
        Ok(task) => match task.state {
            TaskState::Done(answer) => format!("done {}", answer.bytes()),
            TaskState::NotKept { bytes } => format!("not kept {bytes}"),
            other => format!("{other:?}").to_lowercase(),
        },
        Err(missing) => format!("{missing:?}").to_lowercase(),
    }
}

/// Counts its drops.
struct Dropped(Arc<AtomicUsize>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_is_waiting_then_running_then_done() {
    let tasks = tasks();
    let (admit, admitted) = oneshot::channel();
    let (answer, answered) = oneshot::channel();
    let id = submit(&tasks, "nova", |progress| async move {
        admitted.await.expect("it is admitted");
        progress.admit();
        answered.await.expect("it is answered")
    });
    let id = id.expect("there is room");
    settled().await;
    assert_eq!(state(&tasks, "nova", id), "waiting");
    admit.send(()).expect("it waits");
    settled().await;
    assert_eq!(state(&tasks, "nova", id), "running");
    assert_eq!(tasks.snapshot().running, 1);
    advance(MINUTE).await;
    answer.send(b"reply".to_vec()).expect("it waits");
    settled().await;
    assert_eq!(state(&tasks, "nova", id), "done 5");
    let task = tasks.get(&owner("nova"), id).expect("it is kept");
    let took = task.ended.map(|ended| ended.since(task.submitted));
    assert_eq!(took, Some(MINUTE));
    assert_eq!(
        tasks.snapshot(),
        TasksNow {
            ended: 1,
            bytes: 5,
            ..one_answered()
        }
    );
}

#[tokio::test(start_paused = true)]
async fn a_result_is_kept_for_its_time_from_its_end() {
    let tasks = tasks();
    let id = done(&tasks, "nova", 5).await.expect("there is room");
    advance(MINUTE - Duration::from_nanos(1)).await;
    assert_eq!(state(&tasks, "nova", id), "done 5");
    advance(Duration::from_nanos(1)).await;
    assert_eq!(state(&tasks, "nova", id), "gone");
    assert_eq!(tasks.snapshot(), one_answered());
    assert!(tasks.0.lock().shares.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_task_that_has_not_ended_does_not_expire() {
    let tasks = tasks();
    let id = endless(&tasks, "nova").expect("there is room");
    advance(1000 * MINUTE).await;
    assert_eq!(state(&tasks, "nova", id), "waiting");
}

#[tokio::test(start_paused = true)]
async fn a_task_exists_only_for_its_owner() {
    let tasks = tasks();
    let id = done(&tasks, "nova", 5).await.expect("there is room");
    assert_eq!(state(&tasks, "mallory", id), "unknown");
    assert_eq!(cancel(&tasks, "mallory", id), Err(MissingTask::Unknown));
    assert!(tasks.list(&owner("mallory")).is_empty());
    assert_eq!(state(&tasks, "nova", id), "done 5");
}

#[tokio::test(start_paused = true)]
async fn an_earlier_id_is_gone_and_an_invented_one_never_existed() {
    let (before, now) = (tasks(), tasks());
    let old = done(&before, "nova", 5).await.expect("there is room");
    assert_eq!(state(&now, "nova", old), "gone");
    let mut invented = done(&now, "nova", 5).await.expect("there is room");
    invented.random ^= 1;
    assert_eq!(state(&now, "nova", invented), "unknown");
    assert_eq!(cancel(&now, "nova", invented), Err(MissingTask::Unknown));
}

#[tokio::test(start_paused = true)]
async fn an_id_is_read_back_as_written() {
    let id = done(&tasks(), "nova", 5).await.expect("there is room");
    let text = id.to_string();
    assert_eq!((text.len(), text.parse()), (56, Ok(id)));
    let upper = text.to_uppercase();
    let (short, long, signed) = (&text[1..], format!("{text}0"), format!("+{}", &text[1..]));
    let wide = format!("{}é", &text[2..]);
    for wrong in ["", short, &long, &signed, &wide, &"g".repeat(56)] {
        assert_eq!(wrong.parse::<TaskId>(), Err(NoTaskId), "{wrong}");
    }
    assert!(upper == text || upper.parse::<TaskId>() == Err(NoTaskId));
}

#[tokio::test(start_paused = true)]
async fn cancelling_drops_the_future_and_is_shown_until_it_expires() {
    let tasks = tasks();
    let drops = Arc::new(AtomicUsize::new(0));
    let held = Dropped(Arc::clone(&drops));
    let id = submit(&tasks, "nova", |_| async move {
        let _held = held;
        pending().await
    });
    let id = id.expect("there is room");
    settled().await;
    assert_eq!(drops.load(Ordering::Relaxed), 0);
    assert_eq!(cancel(&tasks, "nova", id), Ok(true));
    assert_eq!(state(&tasks, "nova", id), "cancelled");
    settled().await;
    assert_eq!(drops.load(Ordering::Relaxed), 1);
    assert_eq!(state(&tasks, "nova", id), "cancelled");
    advance(MINUTE).await;
    assert_eq!(state(&tasks, "nova", id), "gone");
}

#[tokio::test(start_paused = true)]
async fn a_task_cancelled_before_it_began_never_begins() {
    let tasks = tasks();
    let begun = Arc::new(AtomicUsize::new(0));
    let counted = Dropped(Arc::clone(&begun));
    let id = submit(&tasks, "nova", |_| async move {
        counted.0.fetch_add(10, Ordering::Relaxed);
        Vec::new()
    });
    let id = id.expect("there is room");
    cancel(&tasks, "nova", id).expect("it is here");
    settled().await;
    assert_eq!(begun.load(Ordering::Relaxed), 1, "dropped, and not run");
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_future_that_ends_keeps_no_result() {
    let tasks = tasks();
    let canceller = tasks.clone();
    let id = Arc::new(Mutex::new(None));
    let own = Arc::clone(&id);
    let submitted = submit(&tasks, "nova", move |_| async move {
        // From within, so that it is cancelled while it is being polled.
        let id = own.lock().expect("no thread panics").expect("it is sent");
        cancel(&canceller, "nova", id).expect("it is here");
        b"too late".to_vec()
    });
    let submitted = submitted.expect("there is room");
    *id.lock().expect("no thread panics") = Some(submitted);
    settled().await;
    assert_eq!(state(&tasks, "nova", submitted), "cancelled");
    assert_eq!(
        tasks.snapshot(),
        TasksNow {
            ended: 1,
            counted: EndedTaskCounts {
                cancelled: 1,
                ..EndedTaskCounts::default()
            },
            ..TasksNow::default()
        }
    );
}

#[tokio::test(start_paused = true)]
async fn cancelling_an_ended_task_removes_it() {
    let tasks = tasks();
    let id = done(&tasks, "nova", 50).await.expect("there is room");
    assert_eq!(cancel(&tasks, "nova", id), Ok(false));
    assert_eq!(state(&tasks, "nova", id), "gone");
    assert_eq!(cancel(&tasks, "nova", id), Err(MissingTask::Gone));
    assert_eq!(tasks.snapshot(), one_answered());
    for _ in 0..1000 {
        let id = done(&tasks, "nova", 50).await.expect("there is room");
        cancel(&tasks, "nova", id).expect("it is here");
    }
    assert!(
        tasks.0.lock().ended.len() <= 17,
        "what was let go does not pile up"
    );
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_a_failed_task_and_harms_no_other() {
    let tasks = tasks();
    let other = endless(&tasks, "nova").expect("there is room");
    let late = submit(&tasks, "nova", |_| async {
        yield_now().await;
        panic!("a test's own")
    });
    let early = submit(&tasks, "nova", |_| -> std::future::Ready<Vec<u8>> {
        panic!("a test's own")
    });
    settled().await;
    for failed in [late, early] {
        let failed = failed.expect("there is room");
        assert_eq!(state(&tasks, "nova", failed), "failed");
    }
    assert_eq!(state(&tasks, "nova", other), "waiting");
    assert!(done(&tasks, "cinder", 5).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn tasks_are_bounded_per_owner_and_in_all() {
    let tasks = tasks();
    let refused = |reason, seconds: Option<u64>| TaskRejection {
        reason,
        retry_after: seconds.map(Duration::from_secs),
    };
    for _ in 0..2 {
        endless(&tasks, "nova").expect("there is room");
    }
    let last = done(&tasks, "nova", 1).await.expect("there is room");
    advance(Duration::from_secs(20)).await;
    let expected = refused(TaskBound::TasksOfCaller, Some(40));
    assert_eq!(endless(&tasks, "nova"), Err(expected));
    for _ in 0..2 {
        endless(&tasks, "cinder").expect("there is room");
    }
    assert_eq!(
        endless(&tasks, "glance"),
        Err(refused(TaskBound::Tasks, Some(40)))
    );
    cancel(&tasks, "nova", last).expect("it is here");
    endless(&tasks, "glance").expect("there is room again");
    assert_eq!(
        endless(&tasks, "glance"),
        Err(refused(TaskBound::Tasks, None))
    );
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_task_gives_its_place_to_a_new_one() {
    let tasks = tasks();
    let first = endless(&tasks, "nova").expect("there is room");
    endless(&tasks, "cinder").expect("there is room");
    for _ in 0..10 {
        let id = endless(&tasks, "nova").expect("there is room");
        cancel(&tasks, "nova", id).expect("it is here");
        assert_eq!(state(&tasks, "nova", id), "cancelled");
    }
    endless(&tasks, "cinder").expect("there is room");
    endless(&tasks, "glance").expect("nova's cancelled ones give way");
    endless(&tasks, "glance").expect("nova's cancelled ones give way");
    let refused = endless(&tasks, "glance").expect_err("it is full");
    assert_eq!(refused.reason, TaskBound::Tasks);
    assert_eq!(tasks.list(&owner("nova")).len(), 1);
    assert_eq!(state(&tasks, "nova", first), "waiting");
}

#[test]
fn without_a_runtime_it_panics_and_the_task_has_failed() {
    let tasks = tasks();
    let submitting = std::panic::AssertUnwindSafe(|| endless(&tasks, "nova"));
    assert!(std::panic::catch_unwind(submitting).is_err());
    let listed = tasks.list(&owner("nova"));
    assert!(matches!(
        listed[..],
        [Task {
            state: TaskState::Failed,
            ..
        }]
    ));
}

#[test]
fn a_runtime_that_goes_down_fails_its_tasks() {
    let tasks = tasks();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    let id = runtime.block_on(async { endless(&tasks, "nova") });
    drop(runtime);
    assert_eq!(state(&tasks, "nova", id.expect("there is room")), "failed");
}

#[tokio::test(start_paused = true)]
async fn bytes_are_bounded_per_owner_and_in_all() {
    let tasks = tasks();
    let refused = |reason| TaskRejection {
        reason,
        retry_after: Some(MINUTE),
    };
    let check = |id: Result<TaskId, TaskRejection>, key: &str, expected: &str| {
        let id = id.expect("there is room");
        assert_eq!(state(&tasks, key, id), expected);
    };
    check(done(&tasks, "nova", 61).await, "nova", "not kept 61");
    check(done(&tasks, "nova", 60).await, "nova", "done 60");
    assert_eq!(
        done(&tasks, "nova", 0).await,
        Err(refused(TaskBound::BytesOfCaller))
    );
    check(done(&tasks, "cinder", 41).await, "cinder", "not kept 41");
    check(done(&tasks, "cinder", 40).await, "cinder", "done 40");
    assert_eq!(
        done(&tasks, "glance", 0).await,
        Err(refused(TaskBound::Bytes))
    );
    assert_eq!(tasks.snapshot().bytes, 100);
    advance(MINUTE).await;
    tasks.sweep();
    check(done(&tasks, "nova", 60).await, "nova", "done 60");
}

#[tokio::test(start_paused = true)]
async fn a_list_has_the_owners_tasks_in_their_order() {
    let tasks = tasks();
    let first = endless(&tasks, "nova").expect("there is room");
    endless(&tasks, "cinder").expect("there is room");
    advance(MINUTE).await;
    let second = done(&tasks, "nova", 3).await.expect("there is room");
    let listed: Vec<TaskId> = tasks.list(&owner("nova")).iter().map(|it| it.id).collect();
    assert_eq!(listed, [first, second]);
}

#[tokio::test(start_paused = true)]
async fn a_shorter_time_to_live_applies_to_ended_tasks() {
    let tasks = tasks();
    let id = done(&tasks, "nova", 5).await.expect("there is room");
    let settings = tasks.0.lock().settings;
    tasks.apply(TaskSettings {
        time_to_live: Duration::ZERO,
        ..settings
    });
    assert_eq!(state(&tasks, "nova", id), "gone");
}

#[tokio::test(start_paused = true)]
async fn draining_refuses_new_tasks_and_waits_for_running_ones() {
    let tasks = tasks();
    let (answer, answered) = oneshot::channel();
    let id = submit(&tasks, "nova", |_| async {
        answered.await.expect("answered")
    });
    let id = id.expect("there is room");
    let cancelled = endless(&tasks, "nova").expect("there is room");
    let draining = tokio::spawn({
        let tasks = tasks.clone();
        async move { tasks.drain().await }
    });
    settled().await;
    let refused = endless(&tasks, "nova").expect_err("it goes down");
    assert_eq!(
        (refused.reason, refused.retry_after),
        (TaskBound::Draining, None)
    );
    cancel(&tasks, "nova", cancelled).expect("it is here");
    settled().await;
    assert!(!draining.is_finished());
    answer.send(vec![1]).expect("it waits");
    draining.await.expect("it ends");
    assert_eq!(state(&tasks, "nova", id), "done 1");
}

#[test]
fn many_threads_lose_no_task_and_no_byte() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_time()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let settings = TaskSettings {
            enabled: true,
            tasks_max: 10_000,
            tasks_per_caller_max: 10_000,
            bytes_max: usize::MAX,
            bytes_per_caller_max: usize::MAX,
            time_to_live: MINUTE,
        };
        let tasks: Tasks = Tasks::new(settings, Clock::of_runtime());
        let submitters = (0..8).map(|submitter| {
            let tasks = tasks.clone();
            tokio::spawn(async move {
                let key = format!("owner {}", submitter % 3);
                for n in 0..500 {
                    let id = submit(&tasks, &key, move |_| async move {
                        if n % 2 == 0 {
                            yield_now().await;
                        }
                        vec![0; 3]
                    });
                    let id = id.expect("there is room");
                    if n % 5 == 0 {
                        yield_now().await;
                        cancel(&tasks, &key, id).expect("it is here");
                    }
                }
            })
        });
        for submitter in submitters.collect::<Vec<_>>() {
            submitter.await.expect("it does not panic");
        }
        tasks.drain().await;
        let all: Vec<Task> = (0..3)
            .flat_map(|n| tasks.list(&owner(&format!("owner {n}"))))
            .collect();
        let is_done = |task: &&Task| matches!(task.state, TaskState::Done(_));
        let done = all.iter().filter(is_done).count();
        let now = tasks.snapshot();
        assert_eq!((now.ended, now.waiting, now.running), (all.len(), 0, 0));
        assert_eq!(now.bytes, 3 * done);
        assert!(
            done >= 8 * 400 && all.len() <= 4000,
            "{done} of {}",
            all.len()
        );
        let store = tasks.0.lock();
        let shares = store.shares.values();
        let (count, bytes) = shares.fold((0, 0), |sum, share| {
            (sum.0 + share.tasks, sum.1 + share.bytes)
        });
        assert_eq!((count, bytes), (all.len(), now.bytes));
    });
}

#[tokio::test(start_paused = true)]
async fn an_answer_replaces_its_request_in_the_count() {
    let tasks = tasks();
    let submit = |key: &str, bytes, answer: oneshot::Receiver<Vec<u8>>| {
        let progress = Arc::new(Progress::default());
        let submitted = tasks.submit(submission(key, bytes), watch(&progress), |_| async {
            Ok(an_answer(answer.await.expect("it is answered")))
        });
        submitted.map(|submitted| submitted.id)
    };
    let (tell, answer) = oneshot::channel();
    let id = submit("nova", 50, answer).expect("there is room");
    assert_eq!(tasks.snapshot().bytes, 50);
    let refused = submit("nova", 11, oneshot::channel().1).expect_err("60 at most");
    assert_eq!(refused.reason, TaskBound::BytesOfCaller);
    assert_eq!(refused.retry_after, None, "it is still under way");
    let refused = submit("cinder", 51, oneshot::channel().1).expect_err("100 at most");
    assert_eq!(refused.reason, TaskBound::Bytes);
    tell.send(vec![b'x'; 60]).expect("it waits");
    settled().await;
    assert_eq!(state(&tasks, "nova", id), "done 60");
    assert_eq!(tasks.snapshot().bytes, 60);
}

#[tokio::test(start_paused = true)]
async fn an_answer_in_parts_takes_room_as_it_grows() {
    let tasks = tasks();
    let (tell, told) = oneshot::channel();
    let progress = Arc::new(Progress::default());
    let submitted = tasks.submit(
        submission("nova", 10),
        watch(&progress),
        |room| async move {
            assert!(room.hold(30) && room.hold(20), "60 in all");
            assert!(!room.hold(1));
            told.await.expect("it is sent");
            Err(NotKept { bytes: 51 })
        },
    );
    let id = submitted.expect("there is room").id;
    settled().await;
    assert_eq!(tasks.snapshot().bytes, 60);
    tell.send(()).expect("it waits");
    settled().await;
    assert_eq!(state(&tasks, "nova", id), "not kept 51");
    assert_eq!(tasks.snapshot().bytes, 0);
    assert_eq!(tasks.snapshot().counted.not_kept, 1);
}

#[tokio::test(start_paused = true)]
async fn the_submitter_learns_of_waits_and_of_the_end() {
    let tasks = tasks();
    let progress = || Arc::new(Progress::default());
    let at_once = tasks.submit(submission("nova", 0), progress(), |_| async {
        Ok(an_answer("now"))
    });
    let mut at_once = at_once.expect("there is room");
    assert!(at_once.has_ended_at_once().await);
    let taken = tasks.take(&owner("nova"), at_once.id).expect("it is here");
    assert!(matches!(taken.state, TaskState::Done(_)));
    assert_eq!(state(&tasks, "nova", at_once.id), "gone");

    let (answer, answered) = oneshot::channel();
    let later = tasks.submit(submission("nova", 0), progress(), |_| async {
        Ok(an_answer(answered.await.expect("it is answered")))
    });
    let mut later = later.expect("there is room");
    assert!(!later.has_ended_at_once().await);
    let taken = tasks.take(&owner("nova"), later.id).expect("it is here");
    assert!(matches!(taken.state, TaskState::Waiting));
    answer.send(b"later".to_vec()).expect("it waits");
    later.ended().await;
    assert_eq!(state(&tasks, "nova", later.id), "done 5");
}

#[tokio::test(start_paused = true)]
async fn cancelling_waits_until_the_future_is_dropped() {
    let tasks = tasks();
    let drops = Arc::new(AtomicUsize::new(0));
    let held = Dropped(Arc::clone(&drops));
    let id = submit(&tasks, "nova", |_| async move {
        let _held = held;
        pending().await
    });
    let id = id.expect("there is room");
    settled().await;
    assert_eq!(tasks.cancel(&owner("nova"), id).await, Ok(()));
    assert_eq!(drops.load(Ordering::Relaxed), 1);
}

#[test]
fn owners_differ_by_everything_except_the_port() {
    let identity = |port: u16, agent: Option<&str>| {
        let peer = Peer::Tcp(([127, 0, 0, 1], port).into());
        Identity {
            user_agent: agent.map(Into::into),
            ..Identity::without_names("nova".into(), peer)
        }
    };
    let owner = |port, agent| Owner::of(&identity(port, agent));
    assert_eq!(owner(1, Some("curl")), owner(2, Some("curl")));
    assert_ne!(owner(1, Some("curl")), owner(1, None));
    assert_ne!(owner(1, Some("None")), owner(1, None));
    let mut from: [Identity; 5] = std::array::from_fn(|_| identity(1, None));
    from[1].listener = "cinder".into();
    from[2].address = Some([127, 0, 0, 2].into());
    from[3].originator = Some("x".into());
    from[4].user = Some("x".into());
    let keys: std::collections::HashSet<_> = from.iter().map(Owner::of).collect();
    assert_eq!(keys.len(), 5);
    let socket = |uid| Identity {
        peer: Peer::Unix { uid },
        ..identity(1, None)
    };
    assert_ne!(Owner::of(&socket(1)), Owner::of(&socket(2)));
}
