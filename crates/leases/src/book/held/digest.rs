//! The part of a book that decides its next grants, for a search that tells states apart.
//!
//! Each part is taken apart by all its fields, so that no new field is forgotten. The sums, the order of demands and the heap follow from
//! the rows, so the rows are enough. They may only differ in an entry of the heap that is obsolete, and in the rounding of sums.

use core::hash::{Hash, Hasher};

use super::super::outgoing::{AmountStep, EarlierLeases};
use super::super::{Band, Holder};
use super::{Book, BookRow, RowDemand};

impl Book {
    /// Hashes the row of a holder.
    pub(crate) fn hash_row(&self, holder: Holder, hasher: &mut impl Hasher) {
        let Self {
            rows,
            // A search knows which templates are in force.
            terms: _,
            // They follow from the rows.
            occupied: _,
            live: _,
            demand: _,
            counted: _,
            due: _,
        } = self;
        if let Some(row) = rows.get(holder.0 as usize) {
            row.hash_state(hasher);
        }
    }

    /// The holders of which something counts.
    pub(crate) fn counted_holders(&self) -> impl Iterator<Item = Holder> {
        let rows = self.rows.iter().zip(0..);
        rows.filter(|(row, _)| row.next().is_some())
            .map(|(_, place)| Holder(place))
    }
}

impl BookRow {
    fn hash_state(&self, hasher: &mut impl Hasher) {
        let Self {
            wants,
            granted,
            expires,
            // Never later than the row's next moment, and a row that is checked early does not change.
            looked_at: _,
            outgoing,
        } = self;
        wants.hash_state(hasher);
        (granted.to_bits(), expires).hash(hasher);
        let Some(outgoing) = outgoing else {
            return;
        };
        let EarlierLeases { steps, len } = &**outgoing;
        for AmountStep { amount, until } in &steps[..*len] {
            (amount.to_bits(), until).hash(hasher);
        }
    }
}

impl RowDemand {
    fn hash_state(&self, hasher: &mut impl Hasher) {
        self.bands(|bands| {
            bands.len().hash(hasher);
            for band in bands {
                let Band {
                    priority,
                    clients,
                    wants,
                } = band;
                (priority, clients, wants.get().to_bits()).hash(hasher);
            }
        });
    }
}
