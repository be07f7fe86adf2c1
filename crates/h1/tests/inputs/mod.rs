//! Messages for tests: good ones by a small grammar, those of `tests/http_corpus`, and mutations of both.
//! The same seed and number always give the same input.

#![allow(dead_code, reason = "each binary of tests uses a part of this")]
#![allow(clippy::disallowed_methods, reason = "tests serve no calls")]

pub(crate) mod grammar;
pub(crate) mod guardian;
mod mutate;
#[path = "../../../limits/tests/random/mod.rs"]
mod random;
pub(crate) mod record;

pub(crate) use random::Random;

/// Longer seeds are tried as they are, and not mutated: they would take most of the time.
const MUTATED_BYTES: usize = 600;

/// The kind of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// Messages that a client sends, one behind the other.
    Requests,
    /// Messages that a backend sends in answer to a request.
    Responses,
    /// A chunked body.
    Chunks,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Requests, Self::Responses, Self::Chunks];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Responses => "responses",
            Self::Chunks => "chunks",
        }
    }
}

/// Messages that others have found worth a look.
#[derive(Default)]
pub(crate) struct Seeds {
    pub(crate) requests: Vec<Vec<u8>>,
    pub(crate) responses: Vec<Vec<u8>>,
}

impl Seeds {
    /// The seeds that are short enough to be mutated.
    pub(crate) fn of(requests: Vec<Vec<u8>>, responses: Vec<Vec<u8>>) -> Self {
        let short = |mut all: Vec<Vec<u8>>| {
            all.retain(|it| !it.is_empty() && it.len() <= MUTATED_BYTES);
            all
        };
        Self {
            requests: short(requests),
            responses: short(responses),
        }
    }

    fn any(&self, kind: Kind, random: &mut Random) -> Option<&[u8]> {
        let all = match kind {
            Kind::Requests => &self.requests,
            Kind::Responses => &self.responses,
            Kind::Chunks => return None,
        };
        let at = random.below(all.len().max(1) as u64) as usize;
        all.get(at).map(Vec::as_slice)
    }
}

/// Where the randomness of an input begins. One input shares none of its numbers with the next.
pub(crate) fn random_of(seed: u64, number: u64) -> Random {
    Random::new(Random::new(seed).next() ^ Random::new(number).next())
}

/// Writes an input of this kind.
pub(crate) fn write(kind: Kind, seeds: &Seeds, random: &mut Random, into: &mut Vec<u8>) {
    into.clear();
    let seed = match random.below(5) {
        0 | 1 => seeds.any(kind, random),
        _ => None,
    };
    match seed {
        Some(seed) => into.extend_from_slice(seed),
        None => grammar::message(kind, random, into),
    }
    if random.one_in(8) {
        grammar::message(kind, random, into);
    }
    let mutations = match random.below(8) {
        0 => 0,
        1..=3 => 1,
        4 | 5 => 2,
        6 => 3,
        _ => 4 + random.below(5),
    };
    for _ in 0..mutations {
        mutate::once(kind, seeds, random, into);
    }
}
