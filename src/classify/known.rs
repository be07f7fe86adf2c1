//! The operations of heads that came before.
//!
//! The protocol keeps heads that come again, and gives each of their calls the same one. What such a head asks for is looked
//! up once, unless a body says it.

use std::fmt;
use std::hash::BuildHasher as _;
use std::sync::{Arc, Mutex, TryLockError};

use foldhash::fast::FixedState;

use super::Operation;
use crate::call::Head;

/// Heads that are kept.
const KEPT: usize = 64;

/// They belong to one classifier, so a reload forgets them.
pub(super) struct Known {
    places: Box<[Mutex<Option<Kept>>]>,
}

struct Kept {
    /// Held, so that no other head has its address.
    head: Arc<Head>,
    listener: Arc<str>,
    operation: Operation,
}

impl Known {
    /// What this head asks for at this listener, if that is known.
    pub(super) fn find(&self, head: &Arc<Head>, listener: &Arc<str>) -> Option<Operation> {
        // Another thread that has it at this moment costs more than to look it up.
        let place = self.place(head).try_lock();
        let place = match place {
            Ok(place) => place,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let kept = place.as_ref()?;
        let is_it = Arc::ptr_eq(&kept.head, head) && Arc::ptr_eq(&kept.listener, listener);
        is_it.then(|| kept.operation.clone())
    }

    /// Keeps an operation, if its head may come again.
    pub(super) fn keep(&self, head: &Arc<Head>, listener: &Arc<str>, operation: &Operation) {
        if Arc::strong_count(head) > 1
            && let Ok(mut place) = self.place(head).try_lock()
        {
            *place = Some(Kept {
                head: Arc::clone(head),
                listener: Arc::clone(listener),
                operation: operation.with_own_names(),
            });
        }
    }

    fn place(&self, head: &Arc<Head>) -> &Mutex<Option<Kept>> {
        let hash = FixedState::default().hash_one(Arc::as_ptr(head));
        &self.places[hash as usize % KEPT]
    }
}

impl Default for Known {
    fn default() -> Self {
        Self {
            places: (0..KEPT).map(|_| Mutex::default()).collect(),
        }
    }
}

/// Another classifier knows none yet.
impl Clone for Known {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl fmt::Debug for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Known").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Classifier, Settings};
    use super::*;
    use crate::call::BackendKind;

    fn head(path: &str) -> Arc<Head> {
        let request = http::Request::get(path).header("host", "a").body(());
        let (head, ()) = request.expect("a request").into_parts();
        Arc::new(head.into())
    }

    fn operation() -> Operation {
        let classifier = Classifier::new(&Settings {
            kind: BackendKind::Http,
            odd_paths: super::super::OddPaths::Refuse,
            routes: Vec::new(),
            functions: Vec::new(),
            has_socket: false,
            has_http: true,
            exempt: Vec::new(),
            classes: super::super::class::Settings::default(),
        });
        classifier.operation(Some("read"), classifier.http)
    }

    #[test]
    fn the_same_head_of_the_same_listener_asks_for_the_same() {
        let known = Known::default();
        let (kept, listener) = (head("/a"), Arc::from("main"));
        let of_call = Arc::clone(&kept);
        assert_eq!(known.find(&of_call, &listener), None);
        known.keep(&of_call, &listener, &operation());
        assert_eq!(known.find(&of_call, &listener), Some(operation()));
        assert_eq!(known.find(&of_call, &Arc::from("other")), None);
        assert_eq!(known.find(&head("/a"), &listener), None);
        assert_eq!(known.clone().find(&of_call, &listener), None);
    }

    #[test]
    fn a_head_of_one_call_is_not_kept() {
        let known = Known::default();
        let (once, listener) = (head("/"), Arc::from("main"));
        known.keep(&once, &listener, &operation());
        assert_eq!(known.find(&once, &listener), None);
    }

    #[test]
    fn many_heads_do_not_take_more_room() {
        let known = Known::default();
        let listener = Arc::from("main");
        let heads: Vec<_> = (0..10 * KEPT).map(|_| head("/")).collect();
        for each in &heads {
            let of_call = Arc::clone(each);
            known.keep(&of_call, &listener, &operation());
        }
        let held = heads.iter().filter(|it| Arc::strong_count(it) > 1).count();
        assert!((1..=KEPT).contains(&held), "{held}");
    }
}
