//! Rows with versions and locks.

/// A transaction's number. Rises; 0 is nobody's.
pub(crate) type Xid = u64;

/// How a row is locked. The order of the variants has no meaning, the conflicts have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Strength {
    /// FOR KEY SHARE.
    KeyShare,
    /// FOR SHARE.
    Share,
    /// An update that leaves all unique keys alone.
    NoKeyUpdate,
    /// FOR UPDATE, a deletion, an update of a unique key.
    Update,
}

impl Strength {
    const fn conflicts(self, other: Self) -> bool {
        use Strength::{KeyShare, NoKeyUpdate, Share};
        !matches!(
            (self, other),
            (KeyShare, KeyShare | Share | NoKeyUpdate) | (Share | NoKeyUpdate, KeyShare) | (Share, Share)
        )
    }
}

/// What a statement sees.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Snapshot {
    /// Commits up to this one.
    pub(crate) seq: u64,
    /// And what this transaction wrote,
    pub(crate) xid: Xid,
    /// in statements before this one.
    pub(crate) command: u32,
}

#[derive(Debug, Clone)]
struct Version<R> {
    seq: u64,
    /// `None`: deleted.
    row: Option<R>,
}

/// A row's versions and locks.
#[derive(Debug, Clone)]
pub(crate) struct Chain<R> {
    pub(crate) id: u32,
    /// The committed ones, oldest first.
    versions: Vec<Version<R>>,
    writer: Xid,
    /// Those of the writer, by command.
    pending: Vec<(u32, Option<R>)>,
    locks: Vec<(Xid, Strength)>,
}

impl<R> Chain<R> {
    /// What a snapshot sees.
    pub(crate) fn visible(&self, snapshot: Snapshot) -> Option<&R> {
        if self.writer == snapshot.xid
            && let Some((_, row)) = self.pending.iter().rev().find(|(command, _)| *command < snapshot.command)
        {
            return row.as_ref();
        }
        self.versions.iter().rev().find(|version| version.seq <= snapshot.seq)?.row.as_ref()
    }

    /// The newest version that is committed or the transaction's own.
    pub(crate) fn newest(&self, xid: Xid) -> Option<&R> {
        match self.pending.last() {
            Some((_, row)) if self.writer == xid => row.as_ref(),
            _ => self.committed(),
        }
    }

    /// The newest committed version.
    pub(crate) fn committed(&self) -> Option<&R> {
        self.versions.last().and_then(|version| version.row.as_ref())
    }

    /// Somebody has committed a version that the snapshot does not see.
    pub(crate) fn has_changed(&self, snapshot: Snapshot) -> bool {
        self.versions.last().is_some_and(|version| version.seq > snapshot.seq)
    }

    /// Whether another transaction holds what conflicts.
    pub(crate) fn is_locked(&self, xid: Xid, strength: Strength) -> bool {
        self.locks.iter().any(|(holder, held)| *holder != xid && held.conflicts(strength))
    }

    pub(crate) fn lock(&mut self, xid: Xid, strength: Strength) {
        if !self.locks.contains(&(xid, strength)) {
            self.locks.push((xid, strength));
        }
    }

    /// An uncommitted insertion of somebody else.
    fn is_foreign_insert(&self, xid: Xid) -> bool {
        self.versions.is_empty() && self.writer != xid && !self.pending.is_empty()
    }

    /// Whether the transaction has written it.
    pub(crate) fn is_written_by(&self, xid: Xid) -> bool {
        self.writer == xid && !self.pending.is_empty()
    }
}

/// A table.
#[derive(Debug, Clone)]
pub(crate) struct Table<R> {
    pub(crate) chains: Vec<Chain<R>>,
}

impl<R> Default for Table<R> {
    fn default() -> Self {
        Self { chains: Vec::new() }
    }
}

/// What stands in the way of an insertion.
pub(crate) enum Present {
    /// Nothing.
    Nothing,
    /// A row with this key: of the newest version.
    Row(u32),
    /// One that somebody else has inserted, changed or deleted, and not committed.
    Undecided(u32),
}

impl<R> Table<R> {
    pub(crate) fn with_id(&self, id: u32) -> Option<&Chain<R>> {
        self.chains.iter().find(|chain| chain.id == id)
    }

    pub(crate) fn with_id_mut(&mut self, id: u32) -> Option<&mut Chain<R>> {
        self.chains.iter_mut().find(|chain| chain.id == id)
    }

    /// Rows that the snapshot sees.
    pub(crate) fn seen(&self, snapshot: Snapshot) -> impl Iterator<Item = (u32, &R)> {
        self.chains.iter().filter_map(move |chain| Some((chain.id, chain.visible(snapshot)?)))
    }

    /// Committed rows.
    pub(crate) fn committed(&self) -> impl Iterator<Item = &R> {
        self.chains.iter().filter_map(Chain::committed)
    }

    /// Looks for a row by its unique key, as an insertion does: whatever a snapshot sees.
    pub(crate) fn present(&self, xid: Xid, is_it: impl Fn(&R) -> bool) -> Present {
        for chain in &self.chains {
            let is_pending =
                chain.writer != xid && chain.pending.iter().any(|(_, row)| row.as_ref().is_some_and(&is_it));
            if chain.is_foreign_insert(xid) && is_pending {
                return Present::Undecided(chain.id);
            }
            if chain.newest(xid).is_some_and(&is_it) {
                let is_changing = chain.writer != xid && !chain.pending.is_empty();
                return if is_changing { Present::Undecided(chain.id) } else { Present::Row(chain.id) };
            }
        }
        Present::Nothing
    }

    pub(crate) fn insert(&mut self, id: u32, xid: Xid, command: u32, row: R) {
        let chain = Chain {
            id,
            versions: Vec::with_capacity(2),
            writer: xid,
            pending: vec![(command, Some(row))],
            locks: vec![(xid, Strength::Update)],
        };
        self.chains.push(chain);
    }

    /// Writes a version; the row is locked by the transaction.
    pub(crate) fn write(&mut self, id: u32, xid: Xid, command: u32, row: Option<R>) {
        let chain = self.with_id_mut(id).expect("a locked row stays");
        if chain.writer != xid {
            chain.writer = xid;
            chain.pending.clear();
        }
        chain.pending.push((command, row));
    }

    /// Ends what a transaction has here. `keep_from`: the oldest snapshot in use.
    pub(crate) fn end(&mut self, xid: Xid, commit: Option<u64>, keep_from: u64) {
        for chain in &mut self.chains {
            if chain.writer == xid && !chain.pending.is_empty() {
                let last = chain.pending.pop();
                chain.pending.clear();
                if let (Some(seq), Some((_, row))) = (commit, last) {
                    chain.versions.push(Version { seq, row });
                    // All but the newest that the oldest snapshot sees are needed by nobody.
                    let seen = chain.versions.iter().rposition(|version| version.seq <= keep_from);
                    if let Some(seen @ 1..) = seen {
                        chain.versions.drain(..seen);
                    }
                }
            }
            if !chain.locks.is_empty() {
                chain.locks.retain(|(holder, _)| *holder != xid);
            }
        }
        self.chains.retain(|chain| {
            let is_gone = match chain.versions.last() {
                None => true,
                Some(version) => version.row.is_none() && version.seq <= keep_from,
            };
            !is_gone || !chain.pending.is_empty() || !chain.locks.is_empty()
        });
    }

    /// Forgets all transactions: what a crash does.
    pub(crate) fn crash(&mut self) {
        for chain in &mut self.chains {
            chain.pending.clear();
            chain.writer = 0;
            chain.locks.clear();
            if chain.versions.len() > 1 {
                let last = chain.versions.len() - 1;
                chain.versions.drain(..last);
            }
        }
        self.chains.retain(|chain| chain.versions.last().is_some_and(|version| version.row.is_some()));
    }
}

#[cfg(test)]
mod tests {
    use super::Strength::{KeyShare, NoKeyUpdate, Share, Update};

    #[test]
    fn locks_conflict_as_the_manual_says() {
        let all = [KeyShare, Share, NoKeyUpdate, Update];
        let conflicts: Vec<Vec<bool>> = all.iter().map(|a| all.iter().map(|b| a.conflicts(*b)).collect()).collect();
        assert_eq!(
            conflicts,
            [
                [false, false, false, true],
                [false, false, true, true],
                [false, true, true, true],
                [true, true, true, true]
            ]
        );
    }
}
