//! A connection gets a thread, and threads start and end.

use std::future::pending;
use std::sync::mpsc;

use super::*;

fn executors(places: &[ThreadPlace]) -> Vec<Option<tokio::runtime::Id>> {
    let executor = |place: &ThreadPlace| place.executor.as_ref().map(Handle::id);
    places.iter().map(executor).collect()
}

fn take(threads: &Threads, number: usize) -> Vec<ThreadPlace> {
    (0..number).map(|_| threads.place()).collect()
}

#[test]
fn a_thread_is_started_when_the_others_are_full_and_each_gets_as_many() {
    let threads = Threads::with(3, start);
    let first = take(&threads, BEFORE_THE_NEXT);
    assert!(executors(&first).iter().all(Option::is_none));
    let second = take(&threads, BEFORE_THE_NEXT);
    let third = take(&threads, BEFORE_THE_NEXT);
    let (second, third) = (executors(&second), executors(&third));
    assert!(second[0].is_some() && third[0].is_some() && second[0] != third[0]);
    assert!(second.iter().all(|it| *it == second[0]), "{second:?}");
    assert!(third.iter().all(|it| *it == third[0]), "{third:?}");
    threads.end();
}

#[test]
fn a_connection_goes_to_the_thread_with_the_fewest() {
    let threads = Threads::with(2, start);
    let mut here = take(&threads, BEFORE_THE_NEXT);
    let mut beside = take(&threads, BEFORE_THE_NEXT);
    assert_eq!(executors(&take(&threads, 1)), [None]);
    drop(beside.pop());
    assert_eq!(executors(&take(&threads, 1)), executors(&beside[..1]));
    here.truncate(2);
    assert_eq!(executors(&take(&threads, 5)), [None; 5]);
    threads.end();
}

#[test]
fn a_call_of_the_socket_protocol_stays_and_an_unknown_connection_is_like_the_one_before() {
    let threads = Threads::with(2, start);
    let guess = CallGuess::default();
    let mut places = take(&threads, BEFORE_THE_NEXT);
    for (known, stays) in [
        (Some(true), true),
        (None, true),
        (Some(false), false),
        (None, false),
        (Some(true), true),
    ] {
        let place = threads.place_for(&guess, || known);
        assert_eq!(place.executor.is_none(), stays, "{known:?}");
        places.push(place);
    }
    threads.end();
}

#[test]
fn one_thread_stays_one_and_so_do_those_after_the_end() {
    let threads = Threads::with(1, start);
    assert_eq!(executors(&take(&threads, 20)), [None; 20]);
    let threads = Threads::with(2, start);
    threads.end();
    assert_eq!(executors(&take(&threads, 20)), [None; 20]);
    threads.end();
}

#[test]
fn a_thread_that_cannot_be_started_is_tried_again_at_twice_as_many_connections() {
    static TRIED: AtomicUsize = AtomicUsize::new(0);
    let threads = Threads::with(2, |_, _| {
        TRIED.fetch_add(1, Ordering::Relaxed);
        Err(io::ErrorKind::OutOfMemory.into())
    });
    let mut places = Vec::new();
    for (connections, tried) in [(8, 0), (16, 1), (32, 2), (64, 3), (100, 4)] {
        places.extend(take(&threads, connections - places.len()));
        assert_eq!(TRIED.load(Ordering::Relaxed), tried, "{connections}");
    }
    assert!(executors(&places).iter().all(Option::is_none));
}

#[tokio::test]
async fn a_loop_that_gets_no_thread_ends_on_that_of_another() {
    let runtime = executor(1).expect("there is room");
    drop(Loop(Some(runtime)));
}

#[tokio::test]
async fn all_threads_answer_only_while_none_is_stuck() {
    let threads = Threads::with(2, start);
    assert!(threads.answer().await, "there is no other");
    let places = take(&threads, BEFORE_THE_NEXT + 1);
    assert!(threads.answer().await);
    let executor = places.iter().find_map(|place| place.executor.clone());
    let (resume, stuck) = mpsc::channel::<()>();
    executor.expect("a second thread").spawn(async move {
        // What no task may do.
        let _ = stuck.recv();
    });
    let mut answer = std::pin::pin!(threads.answer());
    let waited = tokio::time::timeout(std::time::Duration::from_millis(50), &mut answer);
    assert!(waited.await.is_err(), "one is stuck");
    drop(resume);
    assert!(answer.await, "it is free again");
    threads.end();
}

#[test]
fn what_is_left_on_a_thread_is_dropped_before_it_ends() {
    struct Left(mpsc::Sender<Option<String>>);
    impl Drop for Left {
        fn drop(&mut self) {
            let name = thread::current().name().map(str::to_owned);
            self.0.send(name).expect("it is read below");
        }
    }
    let threads = Threads::with(2, start);
    let (tell, told) = mpsc::channel();
    let mut places = take(&threads, BEFORE_THE_NEXT + 1);
    let executor = places.pop().and_then(|place| place.executor);
    let left = Left(tell);
    executor.expect("a second thread").spawn(async move {
        let _left = left;
        pending::<()>().await;
    });
    threads.end();
    assert_eq!(told.try_recv(), Ok(Some("calls-2".to_owned())));
}
