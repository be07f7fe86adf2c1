//! A small number for everybody who holds something, so that a long id is kept once.

use std::collections::HashMap;
use std::sync::Arc;

use tidegate_limits::lease::Holder;

/// Who asks: ids of clients and of servers are apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Client,
    Server,
}

#[derive(Debug, Default)]
pub(super) struct Roster {
    clients: HashMap<Arc<str>, Holder>,
    servers: HashMap<Arc<str>, Holder>,
    /// By the holder's number; empty ones are in `free`.
    entries: Vec<Option<Entry>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Entry {
    name: Arc<str>,
    kind: Kind,
    /// Resources of which it holds something.
    leases: usize,
}

impl Roster {
    fn names(&mut self, kind: Kind) -> &mut HashMap<Arc<str>, Holder> {
        match kind {
            Kind::Client => &mut self.clients,
            Kind::Server => &mut self.servers,
        }
    }

    pub(super) fn find(&self, kind: Kind, name: &str) -> Option<Holder> {
        match kind {
            Kind::Client => self.clients.get(name).copied(),
            Kind::Server => self.servers.get(name).copied(),
        }
    }

    /// The number of this name, a new one if it has none. Whoever asks for a new one gives it a
    /// lease or drops it again.
    pub(super) fn find_or_add(&mut self, kind: Kind, name: &str) -> Holder {
        if let Some(holder) = self.find(kind, name) {
            return holder;
        }
        let name: Arc<str> = name.into();
        let entry = Some(Entry {
            name: Arc::clone(&name),
            kind,
            leases: 0,
        });
        let number = match self.free.pop() {
            Some(number) => {
                self.entries[number as usize] = entry;
                number
            }
            None => {
                self.entries.push(entry);
                u32::try_from(self.entries.len() - 1).expect("leases are bounded below 2^32")
            }
        };
        let holder = Holder(number);
        self.names(kind).insert(name, holder);
        holder
    }

    fn entry(&self, holder: Holder) -> &Entry {
        self.entries[holder.0 as usize]
            .as_ref()
            .expect("a holder with a lease is on the roster")
    }

    pub(super) fn name(&self, holder: Holder) -> &str {
        &self.entry(holder).name
    }

    pub(super) fn kind(&self, holder: Holder) -> Kind {
        self.entry(holder).kind
    }

    pub(super) fn leases(&self, holder: Holder) -> usize {
        self.entry(holder).leases
    }

    pub(super) fn gained(&mut self, holder: Holder) {
        self.entries[holder.0 as usize]
            .as_mut()
            .expect("a holder that gains a lease is on the roster")
            .leases += 1;
    }

    /// One lease less; whoever has none is forgotten.
    pub(super) fn lost(&mut self, holder: Holder) {
        let slot = &mut self.entries[holder.0 as usize];
        let entry = slot
            .as_mut()
            .expect("a holder with a lease is on the roster");
        entry.leases -= 1;
        if entry.leases == 0 {
            let entry = slot.take().expect("it was there");
            self.names(entry.kind).remove(&entry.name);
            self.free.push(holder.0);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }
}
