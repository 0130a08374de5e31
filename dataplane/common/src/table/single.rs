//! Flows of one entry: those of servers that answer their clients themselves. They are a cache: each bucket keeps so many
//! of them at most, and the one that matters least gives way to a new one. Flows of two entries are never touched.
//!
//! Such an entry is its own partner, so that whatever removes flows removes it like any other.

use super::{
    FlowMemory, Geometry, NotInserted, Place, entry_at,
    insert::take_and_fill,
    is_published,
    line::{lock, unlock},
    lookup::is_present,
    removal::{free_way, unpublish},
    ways,
};
use crate::{
    addr::Address,
    flow::{FlowEntry, State, flags},
    maps::WAYS,
    tables::ticks_since,
    work::Memory,
};

/// What a scan of a bucket has found. In memory, see [`Memory`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Scan {
    /// Entries that may give way.
    count: Memory,
    /// The one that matters least: a score, its way in the lowest four bits; 0 = none.
    least: Memory,
    /// The one that gave way: [`GAVE_WAY`], [`WAS_OPEN`], its stats and server; 0 = none.
    gone: Memory,
}

/// Bit of [`Scan::gone`]: there is one.
const GAVE_WAY: u64 = 1 << 63;
/// Bit of [`Scan::gone`]: it counted as open.
const WAS_OPEN: u64 = 1 << 62;

impl Scan {
    /// What [`insert_single`] removed to make room: whether it counted as open, its stats index and its server.
    #[inline(always)]
    pub fn gave_way(&self) -> Option<(bool, u16, u16)> {
        let gone = self.gone.get();
        if gone & GAVE_WAY == 0 {
            return None;
        }
        Some((gone & WAS_OPEN != 0, (gone >> 16) as u16, gone as u16))
    }
}

/// Inserts a flow of one entry, published under `flow.incarnation`. At most `most` of them, at least 1, stay in its first
/// bucket; [`Scan::gave_way`] then says which of them gave way.
///
/// # Errors
/// [`NotInserted`], all but `ReplyTaken`.
#[inline(always)]
pub fn insert_single<A: Address, M: FlowMemory>(
    memory: &M,
    geometry: &Geometry,
    owner: u64,
    flow: &FlowEntry,
    most: u32,
    scan: &mut Scan,
) -> Result<(), NotInserted> {
    let key = flow.key().narrow::<A>();
    scan.gone.set(0);
    let place = geometry.place(&key);
    let first = memory.bucket::<A>(place.first).ok_or(NotInserted::Full)?;
    if !lock(memory, first, owner) {
        return Err(NotInserted::Contended);
    }
    let result = if is_present(memory, place, first, &key) {
        Err(NotInserted::ForwardExists)
    } else {
        make_room::<A, M>(memory, geometry, place, flow.last_seen, most, scan);
        take_and_fill(memory, place, first, flow).map(|reserved| {
            let entry = reserved.entry();
            entry.set_partner(reserved.at);
            entry.publish(flow.incarnation);
        })
    };
    unlock(first);
    result
}

/// Removes the single flow of the first bucket that matters least if there are `most`, or no way is free. `now`: tick.
#[inline(always)]
fn make_room<A: Address, M: FlowMemory>(
    memory: &M,
    geometry: &Geometry,
    place: Place,
    now: u32,
    most: u32,
    scan: &mut Scan,
) {
    let Some(bucket) = ways::<A, M>(memory, place.first) else {
        return;
    };
    scan.count.set(0);
    scan.least.set(0);
    let mut taken = 0;
    for way in 0..WAYS as u32 {
        let entry = bucket.entry(way);
        if !is_published(entry.incarnation()) {
            continue;
        }
        taken += 1;
        if entry.flags() & flags::DIRECT == 0 {
            continue;
        }
        scan.count.set(scan.count.get() + 1);
        // One packet may be anybody's: those go first, then by age.
        let unproved = u64::from(entry.packets() <= 1);
        let score =
            unproved << 40 | (u64::from(ticks_since(now, entry.last_seen())) + 1) << 4 | u64::from(way);
        if score > scan.least.get() {
            scan.least.set(score);
        }
    }
    let least = scan.least.get();
    if least == 0 || (scan.count.get() < u64::from(most) && taken < WAYS as u32) {
        return;
    }
    let at = place.first << 4 | (least as u32 & 15);
    let Some(victim) = entry_at::<A, M>(memory, at) else {
        return;
    };
    let incarnation = victim.incarnation();
    // It may have gone, and its way may be another flow's by now.
    if !is_published(incarnation) || victim.flags() & flags::DIRECT == 0 {
        return;
    }
    let key = victim.key();
    let open = if victim.state() == State::Closing {
        0
    } else {
        WAS_OPEN
    };
    let gone = GAVE_WAY | open | u64::from(victim.stats()) << 16 | u64::from(victim.server());
    if !unpublish(memory, victim, incarnation) {
        return;
    }
    scan.gone.set(gone);
    memory.removed(at, victim, incarnation);
    free_way::<A, M>(memory, at, geometry.place(&key));
}
