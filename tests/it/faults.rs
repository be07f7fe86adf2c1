//! Faults at the seams: the real process in each state, with each fault, over each protocol.
//!
//! A cell runs a process of its own. After the fault it gives account: every slot at rest,
//! descriptors and memory as before, every call told exactly once and as what became of it, and the
//! limits kept, as a recorder at the backend saw it. `make faults` runs all cells and writes
//! docs/reports/faults.md; a part of them runs with every test.

mod account;
mod backend;
mod client;
mod config;
mod matrix;
mod options;
mod run;
mod soak;
mod stand_in;
mod stores;
mod subject;
mod table;
mod tag;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use self::account::Broken;
use self::client::{Client, Outcome, SMALL, Way, Wire};
use self::matrix::{Cell, Column, Row};
use self::run::{Ran, Under};
use self::stand_in::Wrong;
use self::tag::Tag;
use crate::seeds::any_seed;
use crate::support::cannot_run;

/// Runs cells, N at once; their results in the order of the cells.
async fn run_all(cells: Vec<(Cell, Under)>, at_once: usize) -> Vec<(Under, Ran)> {
    let places = Arc::new(Semaphore::new(at_once));
    let mut running = JoinSet::new();
    for (number, (cell, under)) in cells.into_iter().enumerate() {
        let places = Arc::clone(&places);
        running.spawn(async move {
            let _place = places.acquire().await.expect("it is never closed");
            let ran = run::run(cell, under).await;
            if !ran.findings.is_empty() && under == Under::Tidegate {
                eprintln!("{}\n  {}", ran.cell.name(), ran.seen);
                for finding in &ran.findings {
                    eprintln!("  {finding}");
                }
            }
            (number, under, ran)
        });
    }
    let mut all = Vec::new();
    while let Some(ran) = running.join_next().await {
        all.push(ran.expect("a cell does not panic"));
    }
    all.sort_by_key(|(number, ..)| *number);
    all.into_iter()
        .map(|(_, under, ran)| (under, ran))
        .collect()
}

/// Fails with the findings.
fn none_is_broken(all: &[(Under, Ran)]) {
    let mut told = String::new();
    for (_, ran) in all.iter().filter(|(_, ran)| !ran.findings.is_empty()) {
        told += &format!("\n{}: {}\n", ran.cell.name(), ran.seen);
        for finding in &ran.findings {
            told += &format!("  {finding}\n");
        }
        told += &format!("{}\n", ran.log);
    }
    assert!(told.is_empty(), "{told}");
}

/// The broken promise that the account must find in each stand-in.
fn found_in(wrong: Wrong) -> Option<Broken> {
    Some(match wrong {
        Wrong::Nothing => return None,
        Wrong::Hang => Broken::Hung,
        Wrong::DoubledCall => Broken::Doubled,
        Wrong::LostSlot => Broken::LostSlot,
        Wrong::ForeignAnswer => Broken::Foreign,
        Wrong::LeakedDescriptor => Broken::LeakedDescriptor,
        Wrong::LeakedTask => Broken::LeakedTask,
        Wrong::ToldTwice => Broken::ToldTwice,
        Wrong::NeverTold => Broken::NeverTold,
        Wrong::OneMoreInAWindow => Broken::WindowExceeded,
        Wrong::OneMoreInFlight => Broken::InFlightExceeded,
        Wrong::TruncatedBody => Broken::Truncated,
        Wrong::SentAfterLeft => Broken::SentAfterLeft,
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_account_catches_each_of_twelve_stand_ins_and_passes_a_good_one() {
    let cell = Cell {
        row: Row::StormInTurn,
        column: Column::ClientLeaves,
        wire: Wire::Http,
    };
    let cells = Wrong::ALL.map(|wrong| (cell, Under::StandIn(wrong)));
    for (under, ran) in run_all(cells.to_vec(), 13).await {
        let Under::StandIn(wrong) = under else {
            unreachable!("all are stand-ins")
        };
        let found: BTreeSet<Broken> = ran.findings.iter().map(|it| it.broken).collect();
        let told: Vec<String> = ran.findings.iter().map(ToString::to_string).collect();
        match found_in(wrong) {
            None => assert!(found.is_empty(), "{wrong:?}: {told:?}\n{}", ran.seen),
            Some(broken) => assert!(found.contains(&broken), "{wrong:?}: {told:?}\n{}", ran.seen),
        }
    }
}

#[test]
fn enough_cells_are_run_and_every_other_has_a_reason() {
    let run = |wire| {
        let cells = Cell::all().into_iter();
        cells
            .filter(|cell| cell.wire == wire && cell.reason().is_none())
            .count()
    };
    assert!(run(Wire::Http) >= 120, "{}", run(Wire::Http));
    assert!(run(Wire::Socket) >= 60, "{}", run(Wire::Socket));
    assert!(run(Wire::Tcp) >= 20, "{}", run(Wire::Tcp));
}

/// The short form: a quarter of the cells, of each state, each fault and each protocol.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_any_fault_it_recovers_and_accounts_for_every_call() {
    let cells = Cell::all().into_iter().filter(|cell| cell.is_in_short());
    let (cells, left_out): (Vec<Cell>, Vec<Cell>) =
        cells.partition(|cell| run::lacks(cell.column).is_none());
    for cell in left_out {
        let lacks = run::lacks(cell.column).unwrap_or_default();
        cannot_run(&format!("faults: {}", cell.name()), lacks);
    }
    for row in Row::ALL {
        assert!(cells.iter().any(|cell| cell.row == row), "{}", row.name());
    }
    for wire in [Wire::Http, Wire::Socket, Wire::Tcp] {
        assert!(cells.iter().any(|cell| cell.wire == wire), "{wire:?}");
    }
    let cells = cells.into_iter().map(|cell| (cell, Under::Tidegate));
    let all = run_all(cells.collect(), 8).await;
    println!("{} cells", all.len());
    none_is_broken(&all);
}

/// An answer may have been on its way when the client closed its sending side.
#[tokio::test]
async fn a_client_that_half_closed_makes_its_next_call_over_another_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let addr = listener.local_addr().expect("it is bound");
    let (tell, fault) = tokio::sync::watch::channel(true);
    let mut client = Client::new(addr, Wire::Http, Way::HalfCloses, fault);
    let tags = [Tag(1), Tag(2), Tag(3)];
    let serving = async {
        for tag in [tags[0], tags[1]] {
            let (mut stream, _) = listener.accept().await.expect("a client");
            let _ = stream.read(&mut [0; 4096]).await;
            let body = tag.body(SMALL.down);
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
            let _ = stream.write_all(&[head.as_bytes(), &body].concat()).await;
            std::mem::forget(stream);
        }
    };
    let calling = async {
        let first = client.call(tags[0], tags[2], SMALL).await;
        assert_eq!(
            (first.outcome, first.left.is_some()),
            (Outcome::Served, true)
        );
        client.way = Way::Stays;
        let second = client.call(tags[1], tags[2], SMALL).await;
        assert_eq!(second.outcome, Outcome::Served);
    };
    tokio::join!(serving, calling);
    drop(tell);
}

fn soaked_well(soaked: &soak::Soaked) {
    let told: Vec<String> = soaked.findings.iter().map(ToString::to_string).collect();
    assert!(told.is_empty(), "{}\n{}", told.join("\n"), soaked.row);
}

/// Half a minute of what `make soak` does for ten.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_leave_at_random_meet_restarts_and_reloads_and_none_hangs_or_comes_twice() {
    let plan = soak::Plan {
        lasts: Duration::from_secs(26),
        restart_every: Duration::from_secs(2),
        seed: any_seed(),
    };
    let soaked = soak::of_tidegate(&plan).await;
    eprintln!("{}{}", soak::HEADING, soaked.row);
    soaked_well(&soaked);
}

/// The soak: `make soak`. MINUTES says for how long, TIDEGATE_SEED which one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes ten minutes; `make soak` runs it"]
async fn the_soak() {
    let minutes = std::env::var("MINUTES").ok().and_then(|it| it.parse().ok());
    let lasts = Duration::from_secs_f64(60.0 * minutes.unwrap_or(10.0));
    let plan = soak::Plan {
        lasts,
        restart_every: Duration::from_secs(20).min(lasts / 5),
        seed: any_seed(),
    };
    // Both at once have the same machine.
    let (tidegate, haproxy) = tokio::join!(soak::of_tidegate(&plan), soak::of_haproxy(&plan));
    let text = format!("\n{}{}{}\n", soak::HEADING, tidegate.row, haproxy.row);
    eprintln!("{text}");
    table::put(table::SOAK.0, table::SOAK.1, &text);
    soaked_well(&tidegate);
}

/// The whole matrix: `make faults`. CELLS selects those whose names contain it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes a quarter of an hour; `make faults` runs it"]
async fn the_matrix() {
    let only = std::env::var("CELLS").unwrap_or_default();
    let at_once = std::env::var("AT_ONCE").ok().and_then(|it| it.parse().ok());
    let cells: Vec<Cell> = Cell::all()
        .into_iter()
        .filter(|cell| cell.reason().is_none() && cell.name().contains(&only))
        .filter(|cell| run::lacks(cell.column).is_none())
        .collect();
    let cells = cells.into_iter().map(|cell| (cell, Under::Tidegate));
    let all = run_all(cells.collect(), at_once.unwrap_or(6)).await;
    let broken = all.iter().filter(|(_, ran)| !ran.findings.is_empty());
    eprintln!("{} cells, {} failed", all.len(), broken.count());
    if only.is_empty() {
        table::write(&all);
    }
    none_is_broken(&all);
}
