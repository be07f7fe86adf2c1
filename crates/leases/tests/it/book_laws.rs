//! The laws of leases, over random demand on a virtual clock.
//!
//! Each seed makes terms, holders and what they want. Each law is also held against a book with a known
//! mistake, which it has to notice.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::time::Duration;

use tidegate_leases::book::{Band, Book, Capacity, Holder, HolderReport, Lease, Split, Terms};
use tidegate_limits::Timestamp;

use crate::random::{Random, seeds};
use crate::shares;

/// Runs a law that has to hold with each seed.
fn hold(law: impl Fn(&mut Random) -> Result<(), String>) {
    for seed in seeds(0..10_000) {
        if let Err(violation) = law(&mut Random::new(seed)) {
            panic!("{violation}");
        }
    }
}

/// How many of 1,000 seeds break a law.
fn broken(law: impl Fn(&mut Random) -> Result<(), String>) -> usize {
    let laws = (0..1000).map(|seed| law(&mut Random::new(seed)));
    laws.filter(Result::is_err).count()
}

macro_rules! require {
    ($holds:expr, $($why:tt)+) => {
        if !$holds {
            return Err(format!($($why)+));
        }
    };
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn capacity(amount: f64) -> Capacity {
    Capacity::new(amount).expect("a capacity")
}

/// Whether `a` is at most `b`, except for the error in the last digits of amounts around `scale`.
fn at_most(a: f64, b: f64, scale: f64) -> bool {
    a <= b + 1e-9 * scale.abs().max(b.abs()).max(1e-9)
}

fn equal(a: f64, b: f64, scale: f64) -> bool {
    at_most(a, b, scale) && at_most(b, a, scale)
}

// ---- What is asked for.

fn any_amount(random: &mut Random) -> f64 {
    match random.below(16) {
        0 => 0.0,
        1 => 1e18,
        2 => random.real(0.0, 1e-6),
        // Few different ones, so that many are alike.
        3..8 => random.below(10) as f64 * 10.0,
        _ => random.real(0.0, 200.0),
    }
}

fn any_band(random: &mut Random) -> Band {
    let clients = match random.below(20) {
        0 => u64::MAX,
        1 => 1 << 20,
        2..6 => random.between(1, 30),
        _ => 1,
    };
    Band {
        priority: random.below(3) as i64 - 1,
        clients: NonZeroU64::new(clients).expect("there are clients"),
        wants: capacity(any_amount(random)),
    }
}

/// A client asks in one band, a server in any number of them.
fn any_bands(random: &mut Random) -> Vec<Band> {
    let number = match random.below(8) {
        0 => random.below(5),
        _ => 1,
    };
    (0..number).map(|_| any_band(random)).collect()
}

fn any_split(random: &mut Random) -> Split {
    random.pick(&[
        Split::None,
        Split::Static,
        Split::Proportional,
        Split::Proportional,
        Split::Fair,
        Split::Fair,
    ])
}

fn any_terms(random: &mut Random, split: Split, frees_after: Duration) -> Terms {
    Terms {
        capacity: capacity(match random.below(12) {
            0 => 0.0,
            1 => 1e18,
            _ => random.real(0.0, 500.0),
        }),
        split,
        by_priority: random.one_in(2),
        lease: ms(random.between(500, 5000)),
        refresh: ms(random.between(1, 5000)),
        frees_after,
    }
}

fn wanted(bands: &[Band]) -> f64 {
    bands.iter().map(|band| band.wants.get()).sum()
}

/// Bands of one priority count as one, and without priorities all do.
fn merged(bands: &[Band], by_priority: bool) -> Vec<Band> {
    let mut sums: BTreeMap<i64, (u64, f64)> = BTreeMap::new();
    for band in bands {
        let priority = if by_priority { band.priority } else { 0 };
        let sum = sums.entry(priority).or_default();
        sum.0 = sum.0.saturating_add(band.clients.get());
        sum.1 += band.wants.get();
    }
    let bands = sums.into_iter().map(|(priority, (clients, wants))| Band {
        priority,
        clients: NonZeroU64::new(clients).expect("there are clients"),
        wants: capacity(wants),
    });
    bands.collect()
}

fn share(terms: &Terms, bands: &[Band]) -> Vec<f64> {
    let capacity = terms.capacity.get();
    if terms.by_priority {
        shares::share_by_priority(terms.split, capacity, bands)
    } else {
        shares::share(terms.split, capacity, bands)
    }
}

/// The right share of each of these holders, by the pure function.
fn shares(terms: &Terms, holders: &[Vec<Band>]) -> Vec<f64> {
    let parts: Vec<Vec<Band>> = holders
        .iter()
        .map(|bands| merged(bands, terms.by_priority && terms.split.shares()))
        .collect();
    let all: Vec<Band> = parts.iter().flatten().copied().collect();
    let mut shares = share(terms, &all).into_iter();
    let sums = parts.iter();
    sums.map(|bands| shares.by_ref().take(bands.len()).sum())
        .collect()
}

// ---- A book that looks at every holder at every request, and may make a mistake.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    None,
    /// Fair shares in two rounds, as Doorman's real server makes them.
    TwoRounds,
    /// The free amount is from the last second request of a holder: new holders get it from a sum
    /// without other new holders.
    StaleSums,
}

struct Model {
    terms: Terms,
    mistake: Mistake,
    rows: BTreeMap<u32, (Vec<Band>, f64, Timestamp)>,
    stale_held: f64,
}

impl Model {
    fn new(terms: Terms, mistake: Mistake) -> Self {
        Self {
            terms,
            mistake,
            rows: BTreeMap::new(),
            stale_held: 0.0,
        }
    }

    fn expire(&mut self, now: Timestamp) {
        self.rows.retain(|_, row| row.2 > now);
    }

    fn held(&self) -> f64 {
        self.rows.values().map(|row| row.1).sum()
    }

    fn share(&self, holder: u32, bands: &[Band]) -> f64 {
        let mut all: Vec<Vec<Band>> = self.rows.values().map(|row| row.0.clone()).collect();
        if self.mistake == Mistake::TwoRounds && self.terms.split == Split::Fair {
            return two_rounds(self.terms.capacity.get(), bands, &all);
        }
        debug_assert!(!self.rows.contains_key(&holder));
        all.push(bands.to_vec());
        shares(&self.terms, &all).pop().expect("it is in there")
    }
}

/// The fair share of Doorman's real server: two rounds of redistribution, for one who asks in one
/// band. Not capped at what is wanted.
fn two_rounds(capacity: f64, own: &[Band], others: &[Vec<Band>]) -> f64 {
    let entry = |bands: &[Band]| {
        let clients: u64 = bands.iter().map(|band| band.clients.get()).sum();
        (wanted(bands), clients as f64)
    };
    let (wants, clients) = entry(own);
    let others: Vec<(f64, f64)> = others.iter().map(|bands| entry(bands)).collect();
    let all = clients + others.iter().map(|other| other.1).sum::<f64>();
    let each = capacity / all;
    let equal = each * clients;
    if wants <= equal {
        return wants;
    }
    let (mut left, mut sharing) = (0.0, clients);
    for &(wants, clients) in &others {
        if wants < each * clients {
            left += each * clients - wants;
        } else if wants > each * clients {
            sharing += clients;
        }
    }
    let level = equal + clients * left / sharing;
    if wants < level {
        return wants;
    }
    let (mut left, mut sharing) = (0.0, clients);
    for &(wants, clients) in others.iter().filter(|other| other.0 > each * other.1) {
        if wants < level {
            left += level - wants;
        } else if wants > level {
            sharing += clients;
        }
    }
    level + clients * left / sharing
}

/// The interface of a book that the laws need.
trait Decide {
    fn ask(&mut self, now: Timestamp, holder: u32, bands: &[Band], has: f64) -> f64;
}

impl Decide for Book {
    fn ask(&mut self, now: Timestamp, holder: u32, bands: &[Band], has: f64) -> f64 {
        let has = capacity(has);
        let lease = Book::ask(self, now, Holder(holder), HolderReport { bands, has }, None);
        lease.capacity.get()
    }
}

impl Decide for Model {
    fn ask(&mut self, now: Timestamp, holder: u32, bands: &[Band], _has: f64) -> f64 {
        self.expire(now);
        let had = self.rows.remove(&holder).map(|row| row.1);
        let known = had.is_some();
        if known || self.mistake != Mistake::StaleSums {
            self.stale_held = self.held();
        }
        let mut granted = self.share(holder, bands);
        if self.terms.split.shares() {
            let free = self.terms.capacity.get() - self.stale_held;
            granted = granted.min(free.max(had.unwrap_or(0.0)));
        }
        let granted = granted.max(0.0);
        let row = (bands.to_vec(), granted, now + self.terms.lease);
        self.rows.insert(holder, row);
        granted
    }
}

// ---- Who asks twice has what it ought to have.

/// All ask repeatedly for the same. Then each has what the pure function returns, and at no time
/// had a holder more than its demand, or all together more than the capacity.
fn all_ask_for_the_same<D: Decide>(
    random: &mut Random,
    terms: Terms,
    clients_max: u64,
    new: impl Fn(Terms) -> D,
) -> Result<(), String> {
    let terms = Terms {
        lease: Duration::from_secs(3600),
        ..terms
    };
    let split = terms.split;
    let number = random.between(1, 12) as usize;
    let several = random.one_in(3);
    let holders: Vec<Vec<Band>> = (0..number)
        .map(|_| {
            let mut bands = any_bands(random);
            if !several || bands.is_empty() {
                bands = vec![any_band(random)];
            }
            for band in &mut bands {
                let clients = band.clients.get().min(clients_max);
                band.clients = NonZeroU64::new(clients).expect("there are clients");
            }
            bands
        })
        .collect();
    let mut decide = new(terms);
    let mut has = vec![0.0; number];
    let total = terms.capacity.get();
    for round in 0..6 {
        for (holder, bands) in holders.iter().enumerate() {
            let now = Timestamp::ZERO + ms(round * 200);
            let got = decide.ask(now, holder as u32, bands, has[holder]);
            has[holder] = got;
            let wants = wanted(bands);
            require!(got.is_finite() && got >= 0.0, "{holder} got {got}");
            require!(
                at_most(got, wants, wants),
                "{holder} got {got}, wants {wants}"
            );
            let held: f64 = has.iter().sum();
            require!(
                !split.shares() || at_most(held, total, total),
                "{held} of {total} are held"
            );
        }
    }
    for (holder, (got, share)) in has.iter().zip(shares(&terms, &holders)).enumerate() {
        require!(
            equal(*got, share, share.max(total)),
            "{holder} has {got} instead of {share} of {holders:?}, {terms:?}"
        );
    }
    Ok(())
}

#[test]
fn holders_that_keep_asking_get_their_shares() {
    hold(|random| {
        let split = any_split(random);
        let frees_after = ms(if random.one_in(3) { 100 } else { 0 });
        let terms = any_terms(random, split, frees_after);
        all_ask_for_the_same(random, terms, u64::MAX, Book::new)
    });
}

#[test]
fn the_laws_notice_two_rounds_of_redistribution_and_stale_sums_but_not_a_right_book() {
    let broken_with = |mistake| {
        broken(|random| {
            // All count alike, so that it is only the number of rounds that is wrong.
            let terms = Terms {
                by_priority: false,
                ..any_terms(random, Split::Fair, Duration::ZERO)
            };
            all_ask_for_the_same(random, terms, 1, |terms| Model::new(terms, mistake))
        })
    };
    let two_rounds = broken_with(Mistake::TwoRounds);
    assert!(two_rounds > 50, "{two_rounds} seeds of 1,000 notice");
    let stale = broken_with(Mistake::StaleSums);
    assert!(stale > 50, "{stale} seeds of 1,000 notice");
    assert_eq!(broken_with(Mistake::None), 0);
}

// ---- The splits.

/// The level to which all can be filled, by halving.
fn brute_force_fair(capacity: f64, bands: &[Band]) -> Vec<f64> {
    let fill = |level: f64| -> Vec<f64> {
        let weight = |band: &Band| band.clients.get().min(u32::MAX.into()) as f64;
        let shares = bands
            .iter()
            .map(|band| band.wants.get().min(level * weight(band)));
        shares.collect()
    };
    let (mut low, mut high) = (0.0, 2e18);
    for _ in 0..400 {
        let level = low + (high - low) / 2.0;
        if fill(level).iter().sum::<f64>() <= capacity {
            low = level;
        } else {
            high = level;
        }
    }
    fill(low)
}

fn brute_force_proportional(capacity: f64, bands: &[Band]) -> Vec<f64> {
    let weight = |band: &Band| band.clients.get().min(u32::MAX.into()) as f64;
    if wanted(bands) <= capacity {
        return bands.iter().map(|band| band.wants.get()).collect();
    }
    let each = capacity / bands.iter().map(weight).sum::<f64>();
    let unused = |band: &Band| (each * weight(band) - band.wants.get()).max(0.0);
    let beyond = |band: &Band| (band.wants.get() - each * weight(band)).max(0.0);
    let unused: f64 = bands.iter().map(unused).sum();
    let all_beyond: f64 = bands.iter().map(beyond).sum();
    let share = |band: &Band| {
        let wants = band.wants.get();
        let more = if all_beyond > 0.0 {
            beyond(band) * unused / all_beyond
        } else {
            0.0
        };
        wants.min(each * weight(band) + more)
    };
    bands.iter().map(share).collect()
}

#[test]
fn the_splits_are_what_a_solver_by_brute_force_finds() {
    hold(|random| {
        let split = random.pick(&[Split::Proportional, Split::Fair]);
        let terms = any_terms(random, split, Duration::ZERO);
        let bands: Vec<Band> = (0..random.between(1, 12))
            .map(|_| any_band(random))
            .collect();
        let solve = |capacity, bands: &[Band]| match split {
            Split::Fair => brute_force_fair(capacity, bands),
            _ => brute_force_proportional(capacity, bands),
        };
        let mut expected = vec![0.0; bands.len()];
        let mut left = terms.capacity.get();
        let mut priorities: Vec<i64> = bands.iter().map(|band| band.priority).collect();
        if !terms.by_priority {
            priorities = vec![0];
        }
        priorities.sort_unstable();
        priorities.dedup();
        for priority in priorities.into_iter().rev() {
            let here = |band: &Band| !terms.by_priority || band.priority == priority;
            let members: Vec<usize> = (0..bands.len()).filter(|&i| here(&bands[i])).collect();
            let rank: Vec<Band> = members.iter().map(|&index| bands[index]).collect();
            for (index, share) in members.into_iter().zip(solve(left, &rank)) {
                expected[index] = share;
            }
            left = (left - wanted(&rank)).max(0.0);
        }
        let got = share(&terms, &bands);
        for (got, expected) in got.iter().zip(&expected) {
            let scale = terms.capacity.get().min(wanted(&bands));
            require!(
                equal(*got, *expected, scale),
                "{got} instead of {expected}: {bands:?}, {terms:?}"
            );
        }
        Ok(())
    });
}

#[test]
fn no_holder_can_have_more_without_less_for_one_that_has_no_more() {
    hold(|random| {
        let bands: Vec<Band> = (0..random.between(1, 12))
            .map(|_| any_band(random))
            .collect();
        let capacity = any_terms(random, Split::Fair, Duration::ZERO).capacity;
        let shares = shares::share(Split::Fair, capacity.get(), &bands);
        let total: f64 = shares.iter().sum();
        let all = capacity.get().min(wanted(&bands));
        require!(equal(total, all, all), "{total} of {all} is given");
        let weight = |band: &Band| band.clients.get().min(u32::MAX.into()) as f64;
        for (band, share) in bands.iter().zip(&shares) {
            if at_most(band.wants.get(), *share, all) {
                continue;
            }
            for (other, others_share) in bands.iter().zip(&shares) {
                let (level, others) = (share / weight(band), others_share / weight(other));
                require!(
                    at_most(others, level, level),
                    "{band:?} has {share}, but {other:?} has {others_share}"
                );
            }
        }
        Ok(())
    });
}

#[test]
fn more_capacity_or_a_larger_demand_gives_no_holder_less() {
    hold(|random| {
        let split = any_split(random);
        let terms = any_terms(random, split, Duration::ZERO);
        let mut bands: Vec<Band> = (0..random.between(1, 12))
            .map(|_| any_band(random))
            .collect();
        let before = share(&terms, &bands);
        let more = Terms {
            capacity: capacity(terms.capacity.get() + random.real(0.0, 200.0)),
            ..terms
        };
        let scale = more.capacity.get();
        for (before, after) in before.iter().zip(share(&more, &bands)) {
            require!(
                at_most(*before, after, scale),
                "{before}, then {after} of more: {bands:?}, {terms:?}"
            );
        }
        let index = random.below(bands.len() as u64) as usize;
        let wants = bands[index].wants.get() + random.real(0.0, 200.0);
        bands[index].wants = capacity(wants);
        let after = share(&terms, &bands)[index];
        require!(
            at_most(before[index], after, scale),
            "{}, then {after} when it wants {wants}: {bands:?}, {terms:?}",
            before[index]
        );
        Ok(())
    });
}

// ---- Histories.

#[test]
fn a_book_decides_like_one_that_looks_at_all_holders() {
    hold(|random| {
        let split = any_split(random);
        let mut terms = any_terms(random, split, Duration::ZERO);
        let mut book = Book::new(terms);
        let mut model = Model::new(terms, Mistake::None);
        let mut now = Timestamp::ZERO;
        for _ in 0..random.between(1, 40) {
            if random.one_in(3) {
                now = now + ms(random.below(1500));
            }
            let holder = random.below(8) as u32;
            match random.below(20) {
                0 => {
                    let split = any_split(random);
                    terms = any_terms(random, split, Duration::ZERO);
                    book.set_terms(now, terms);
                    model.expire(now);
                    model.terms = terms;
                }
                1 => {
                    model.expire(now);
                    let released = model.rows.remove(&holder).is_some();
                    require!(
                        book.release(now, Holder(holder)) == released,
                        "{holder} is released"
                    );
                }
                2 => {
                    let bands = any_bands(random);
                    let has = any_amount(random);
                    let report = HolderReport {
                        bands: &bands,
                        has: capacity(has),
                    };
                    let lease = book.learn(now, Holder(holder), report, None);
                    require!(lease.capacity.get() == has, "{has} was learned");
                    model.expire(now);
                    model.rows.insert(holder, (bands, has, now + terms.lease));
                }
                _ => {
                    let bands = any_bands(random);
                    let got = Decide::ask(&mut book, now, holder, &bands, 0.0);
                    let expected = Decide::ask(&mut model, now, holder, &bands, 0.0);
                    let scale = terms.capacity.get().max(model.held());
                    require!(
                        equal(got, expected, scale),
                        "{holder} got {got} instead of {expected}: {bands:?}, {terms:?}"
                    );
                    // So that a digit does not make two histories of one.
                    model.rows.get_mut(&holder).expect("it asked").1 = got;
                }
            }
            model.expire(now);
            book.expire(now);
            let held = model.held();
            require!(
                equal(book.held().get(), held.min(1e18), held),
                "{} is held, not {held}",
                book.held().get()
            );
            require!(
                book.holders() == model.rows.len(),
                "{} hold leases",
                book.holders()
            );
            let listed: Vec<_> = book.iter().map(|held| held.holder.0).collect();
            let known: Vec<_> = model.rows.keys().copied().collect();
            require!(listed == known, "{listed:?} are listed, not {known:?}");
            let first = model.rows.values().map(|row| row.2).min();
            require!(
                book.next_due().is_some() == first.is_some() && book.next_due() <= first,
                "due at {:?}, not by {first:?}",
                book.next_due()
            );
            let all: Vec<Band> = model.rows.values().flat_map(|row| row.0.clone()).collect();
            let by_priority = book.bands();
            let mut expected = merged(&all, true);
            expected.reverse();
            require!(by_priority.len() == expected.len(), "{by_priority:?}");
            for (band, expected) in by_priority.iter().zip(&expected) {
                let (wants, scale) = (band.wants.get(), expected.wants.get());
                require!(
                    band.priority == expected.priority && equal(wants, scale, scale),
                    "{band:?} instead of {expected:?}"
                );
            }
        }
        Ok(())
    });
}

/// A holder that lives by what reaches it.
#[derive(Clone, Default)]
struct Honest {
    using: f64,
    until: Timestamp,
    since: Timestamp,
    /// Earlier use: how much, and until when.
    used: Vec<(f64, Timestamp)>,
    /// An answer that is on its way.
    answer: Option<Lease>,
}

impl Honest {
    /// Notes that what it may use has run out, if so.
    fn tick(&mut self, now: Timestamp) {
        if self.using > 0.0 && self.until <= now {
            self.used.push((self.using, self.until));
            self.using = 0.0;
        }
    }

    fn use_from(&mut self, now: Timestamp, lease: Lease) {
        self.tick(now);
        self.used.push((self.using, now));
        self.since = now;
        self.using = lease.capacity.get();
        self.until = lease.expires;
        self.tick(now);
    }

    /// The most that it has used in the window that ends now.
    fn in_window(&self, now: Timestamp, window: Duration) -> f64 {
        let recent = self.used.iter().filter(|(_, end)| *end + window > now);
        recent.map(|used| used.0).fold(self.using, f64::max)
    }
}

/// Checks that the use within any window never exceeds what the book counts, and that this never grows beyond the
/// capacity, while answers come late or never, holders vanish and terms change.
fn no_window_holds_too_much(random: &mut Random, frees_after: Duration) -> Result<(), String> {
    let window = frees_after;
    let any = |random: &mut Random, frees_after| {
        let split = random.pick(&[Split::Proportional, Split::Fair]);
        any_terms(random, split, frees_after)
    };
    let mut terms = any(random, frees_after);
    let mut book = Book::new(terms);
    let mut holders = vec![Honest::default(); random.between(1, 6) as usize];
    let mut now = Timestamp::ZERO;
    let mut cap = None;
    for _ in 0..random.between(10, 60) {
        now = now + ms(random.pick(&[0, 0, 1, 50, 90, 100, 250, 900]));
        for holder in &mut holders {
            holder.tick(now);
            if random.one_in(3)
                && let Some(lease) = holder.answer.take()
            {
                holder.use_from(now, lease);
            }
        }
        book.expire(now);
        let before = book.held().get();
        let index = random.below(holders.len() as u64) as usize;
        let holder = &mut holders[index];
        let id = Holder(index as u32);
        match random.below(16) {
            0 => {
                terms = any(random, frees_after);
                book.set_terms(now, terms);
            }
            1 => {
                holder.answer = None;
                holder.used.push((holder.using, now));
                holder.using = 0.0;
                book.release(now, id);
            }
            2 => cap = random.one_in(2).then(|| now + ms(random.below(3000))),
            _ => {
                // An answer that has not come by now is given up.
                holder.answer = None;
                let bands = any_bands(random);
                let report = HolderReport {
                    bands: &bands,
                    has: capacity(holder.using),
                };
                let lease = book.ask(now, id, report, cap);
                let (got, wants) = (lease.capacity.get(), wanted(&bands));
                require!(got.is_finite() && got >= 0.0, "{index} got {got}");
                require!(
                    at_most(got, wants, wants),
                    "{index} got {got}, wants {wants}"
                );
                require!(
                    lease.expires <= now + terms.lease
                        && lease.refresh < lease.expires.since(now)
                        && lease.refresh <= terms.refresh,
                    "{lease:?} at {now:?} by {terms:?}"
                );
                require!(
                    got == 0.0 || cap.is_none_or(|cap| lease.expires <= cap),
                    "{lease:?} ends after {cap:?}"
                );
                match random.below(4) {
                    0 => {}
                    1 => holder.answer = Some(lease),
                    _ => holder.use_from(now, lease),
                }
            }
        }
        let held = book.held().get();
        let most = before.max(terms.capacity.get());
        require!(
            at_most(held, most, most),
            "{held} counts as held, {before} before, by {terms:?}"
        );
        let used: f64 = holders
            .iter()
            .map(|holder| holder.in_window(now, window))
            .sum();
        require!(
            at_most(used, held, used),
            "{used} was used within {window:?}, but {held} counts, at {now:?} by {terms:?}"
        );
    }
    // In the end everything is free.
    now = now + Duration::from_secs(3600);
    book.expire(now);
    require!(
        book.held() == Capacity::ZERO && book.next_due().is_none() && book.holders() == 0,
        "{:?} is never free",
        book.held()
    );
    Ok(())
}

#[test]
fn no_window_ever_exceeds_the_capacity() {
    hold(|random| no_window_holds_too_much(random, ms(100)));
}

#[test]
fn the_law_of_windows_notices_a_share_that_is_free_at_once() {
    let at_once = broken(|random| {
        let window = ms(100);
        let mut book = Book::new(Terms {
            frees_after: Duration::ZERO,
            ..any_terms(random, Split::Fair, window)
        });
        let total = book.terms().capacity.get();
        let mut holders = vec![Honest::default(); 3];
        for step in 0..30 {
            let now = Timestamp::ZERO + ms(10 * step);
            let index = random.below(3) as usize;
            let bands = [any_band(random)];
            let has = capacity(holders[index].using);
            let report = HolderReport { bands: &bands, has };
            let lease = book.ask(now, Holder(index as u32), report, None);
            holders[index].use_from(now, lease);
            let used: f64 = holders
                .iter()
                .map(|holder| holder.in_window(now, window))
                .sum();
            require!(at_most(used, total, total), "{used} of {total} was used");
        }
        Ok(())
    });
    assert!(at_once > 500, "{at_once} seeds of 1,000 notice");
}

// ---- What is promised beyond the laws.

fn plain(split: Split, amount: f64) -> Terms {
    Terms {
        capacity: capacity(amount),
        split,
        by_priority: false,
        lease: Duration::from_secs(60),
        refresh: Duration::from_secs(16),
        frees_after: Duration::ZERO,
    }
}

fn want(priority: i64, wants: f64) -> Band {
    Band {
        priority,
        clients: NonZeroU64::MIN,
        wants: capacity(wants),
    }
}

#[test]
fn a_million_changes_leave_no_digit_behind() {
    for split in [Split::Proportional, Split::Fair] {
        let mut random = Random::new(7);
        let mut book = Book::new(plain(split, 1000.0));
        let mut now = Timestamp::ZERO;
        let bands: Vec<Band> = (1..=50).map(|n| want(0, f64::from(n) * 1.1)).collect();
        let settle = |book: &mut Book, now| -> Vec<f64> {
            let mut got = Vec::new();
            for _ in 0..3 {
                let asked = bands.iter().zip(0..);
                got = asked
                    .map(|(band, holder)| Decide::ask(book, now, holder, &[*band], 0.0))
                    .collect();
            }
            got
        };
        let before = settle(&mut book, now);
        for _ in 0..1_000_000 {
            now = now + Duration::from_micros(1);
            let holder = random.below(50) as u32;
            let wants = match random.below(3) {
                0 => 1e18,
                1 => random.real(0.0, 1e-9),
                _ => random.real(0.0, 1e6),
            };
            Decide::ask(&mut book, now, holder, &[want(0, wants)], 0.0);
        }
        let after = settle(&mut book, now);
        assert_eq!(book.wanted().get(), {
            let mut fresh = Book::new(plain(split, 1000.0));
            settle(&mut fresh, now);
            fresh.wanted().get()
        });
        for (before, after) in before.iter().zip(&after) {
            assert!(equal(*before, *after, 1.0), "{before}, then {after}");
        }
        let held: f64 = after.iter().sum();
        assert!(at_most(held, 1000.0, 1.0), "{held}");
    }
}

#[test]
fn a_lowered_capacity_waits_for_leases_to_shrink() {
    let mut book = Book::new(plain(Split::Fair, 100.0));
    let now = Timestamp::ZERO;
    let ask = |book: &mut Book, holder| Decide::ask(book, now, holder, &[want(0, 50.0)], 0.0);
    assert_eq!((ask(&mut book, 0), ask(&mut book, 1)), (50.0, 50.0));
    book.set_terms(now, plain(Split::Fair, 12.0));
    assert_eq!(book.held(), capacity(100.0));
    // Each shrinks to its share when it asks; a new holder waits until all have.
    assert_eq!((ask(&mut book, 0), ask(&mut book, 2)), (6.0, 0.0));
    assert_eq!((ask(&mut book, 1), ask(&mut book, 2)), (4.0, 2.0));
}

#[test]
fn the_greater_priority_is_served_first_also_among_the_bands_of_one_server() {
    let mut book = Book::new(Terms {
        by_priority: true,
        ..plain(Split::Fair, 100.0)
    });
    let now = Timestamp::ZERO;
    let server = [want(1, 30.0), want(0, 1000.0), want(1, 20.0)];
    let all = |book: &mut Book| {
        (0..3).for_each(|_| {
            Decide::ask(book, now, 0, &server, 0.0);
            Decide::ask(book, now, 1, &[want(0, 20.0)], 0.0);
        });
        let leases = book.iter().map(|held| held.lease.capacity.get());
        leases.collect::<Vec<f64>>()
    };
    // The server gets the 50 of its upper band, and of the rest what is fair.
    assert_eq!(all(&mut book), [80.0, 20.0]);
    assert_eq!(
        book.bands()
            .iter()
            .map(|band| (band.priority, band.clients.get(), band.wants.get()))
            .collect::<Vec<_>>(),
        [(1, 2, 50.0), (0, 2, 1020.0)]
    );
    // Without priorities it has three clients, and gets what the other leaves.
    book.set_terms(now, plain(Split::Fair, 100.0));
    assert_eq!(all(&mut book), [80.0, 20.0]);
    book.set_terms(now, plain(Split::Fair, 60.0));
    assert_eq!(all(&mut book), [45.0, 15.0]);
    assert_eq!(book.clients(), 4);
}

#[test]
fn a_lowered_share_is_free_a_window_after_its_holder_confirmed() {
    let terms = Terms {
        frees_after: ms(1000),
        ..plain(Split::Fair, 100.0)
    };
    let mut book = Book::new(terms);
    let at = |milliseconds| Timestamp::ZERO + ms(milliseconds);
    let ask = |book: &mut Book, now, holder, has| {
        Decide::ask(book, at(now), holder, &[want(0, 100.0)], has)
    };
    assert_eq!(ask(&mut book, 0, 0, 0.0), 100.0);
    assert_eq!(ask(&mut book, 0, 1, 0.0), 0.0);
    // It is granted 50, but it is unknown whether that reaches it.
    assert_eq!(ask(&mut book, 100, 0, 100.0), 50.0);
    assert_eq!(ask(&mut book, 5000, 1, 0.0), 0.0);
    assert_eq!(book.held(), capacity(100.0));
    // Now it says so. What it used until then stays within the window for a second.
    assert_eq!(ask(&mut book, 5000, 0, 50.0), 50.0);
    assert_eq!(ask(&mut book, 5999, 1, 0.0), 0.0);
    assert_eq!(ask(&mut book, 6000, 1, 0.0), 50.0);
    // Who releases has used what it had until now.
    assert!(book.release(at(7000), Holder(0)));
    assert_eq!(ask(&mut book, 7999, 1, 50.0), 50.0);
    assert_eq!(ask(&mut book, 8000, 1, 50.0), 100.0);
    // Who is never heard of again, until its lease ended.
    book.expire(at(68_000));
    assert_eq!((book.held(), book.holders()), (capacity(100.0), 0));
    assert_eq!(book.next_due(), Some(at(69_000)));
    assert_eq!(ask(&mut book, 68_999, 2, 0.0), 0.0);
    assert_eq!(ask(&mut book, 69_000, 2, 0.0), 100.0);
}

#[test]
fn a_holder_that_gets_no_answer_keeps_its_greater_lease_counted_until_that_ends() {
    let mut book = Book::new(Terms {
        frees_after: ms(1000),
        ..plain(Split::Fair, 100.0)
    });
    let at = |milliseconds| Timestamp::ZERO + ms(milliseconds);
    let ask = |book: &mut Book, now, holder, has| {
        Decide::ask(book, at(now), holder, &[want(0, 100.0)], has)
    };
    ask(&mut book, 0, 0, 0.0);
    ask(&mut book, 0, 1, 0.0);
    // It says again and again that it has 100, since every answer is lost.
    for second in 1..60 {
        assert_eq!(ask(&mut book, second * 1000, 0, 100.0), 50.0);
        assert_eq!(ask(&mut book, second * 1000, 1, 0.0), 0.0);
    }
    // The lease on 100 ended after 60 s, and a window later it is free.
    assert_eq!(ask(&mut book, 60_000, 0, 0.0), 50.0);
    assert_eq!(ask(&mut book, 60_999, 1, 0.0), 0.0);
    assert_eq!(ask(&mut book, 61_000, 1, 0.0), 50.0);
}

#[test]
fn a_lease_ends_with_the_one_that_it_is_cut_from_and_is_renewed_before() {
    let mut book = Book::new(plain(Split::Fair, 100.0));
    let at = |second| Timestamp::ZERO + Duration::from_secs(second);
    let bands = [want(0, 10.0)];
    let mut ask = |now, cap| {
        let report = HolderReport {
            bands: &bands,
            has: Capacity::ZERO,
        };
        book.ask(at(now), Holder(0), report, cap)
    };
    let check = |lease: Lease, amount, ends, refresh| {
        assert_eq!(lease.capacity, capacity(amount));
        assert_eq!(lease.expires, at(ends));
        assert_eq!(lease.refresh, Duration::from_secs(refresh));
    };
    check(ask(0, None), 10.0, 60, 16);
    check(ask(0, Some(at(90))), 10.0, 60, 16);
    check(ask(0, Some(at(20))), 10.0, 20, 16);
    check(ask(10, Some(at(20))), 10.0, 20, 9);
    // There is nothing left to give, but what is wanted stays known.
    check(ask(20, Some(at(20))), 0.0, 80, 16);
    assert_eq!(book.wanted(), capacity(10.0));
}
