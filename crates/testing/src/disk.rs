//! A disk that lives in memory, forgets like a real one, and does so again for the same seed.
//!
//! Owns: [`SimDisk`], a [`Vfs`] of one directory with a page cache, a medium below it and the facts that a power loss
//! may keep or lose one by one: sectors of files, lengths of files, names.
//! Never: reads a clock, draws from anything but the seeds it was given, or reorders what was synced.
//!
//! What a power loss does follows the weakest promise of real file systems: of the sectors written since a file's last
//! sync, any subset is on the medium, by 512 bytes or by 4 KiB; of the creations, renamings and removals since the last
//! sync of the directory, any subset has happened. A write may also reach the medium early and be overwritten in the
//! cache later, so that an older state of a sector comes back.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tubes_store::{Access, Vfs, VfsFile};

/// What a disk writes at once or not at all, in bytes.
pub const SECTOR_BYTES: usize = 512;
/// What a page cache writes at once, as a rule, in sectors.
const PAGE_SECTORS: usize = 8;

/// Which calls fail. Everything is off by default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskFaults {
    /// Of a million writes into files, so many fail with EIO, a part of them written.
    pub write_errors_per_million: u32,
    /// Of a million syncs of files, so many fail with EIO; the cache then takes all its pages for clean.
    pub sync_errors_per_million: u32,
    /// Of a million allocations, so many fail with ENOSPC.
    pub allocate_errors_per_million: u32,
    /// Of a million writes into files, so many report success and change nothing on the medium or in the cache.
    pub lost_writes_per_million: u32,
}

/// How often each call was made; syncs of the directory count as syncs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskCounts {
    /// Writes into files.
    pub writes: u64,
    /// Syncs of files and of the directory.
    pub syncs: u64,
    /// Allocations that were tried.
    pub allocations: u64,
}

/// One directory on a simulated disk. Clones are handles on the same disk; those made before a crash are dead after it.
#[derive(Debug, Clone)]
pub struct SimDisk {
    inner: Arc<Mutex<Inner>>,
    life: u64,
}

/// An open file of a [`SimDisk`]; dead after a crash.
#[derive(Debug, Clone)]
pub struct SimFile {
    inner: Arc<Mutex<Inner>>,
    life: u64,
    index: usize,
}

#[derive(Debug)]
struct Inner {
    random: SplitMix,
    files: Vec<Option<Data>>,
    /// Emptied buffers, so that a long run does not allocate.
    pool: Vec<Vec<u8>>,
    /// Names as the running system sees them, and as the medium has them.
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    facts: Vec<Fact>,
    capacity: u64,
    used: u64,
    life: u64,
    faults: DiskFaults,
    counts: DiskCounts,
    calls: u64,
    stop_at_call: Option<u64>,
    lose_write: Option<u64>,
    stopped: bool,
}

/// Something that happened to a name since the last sync of the directory.
#[derive(Debug)]
enum Fact {
    Created(String, usize),
    Renamed(String, String, usize),
    Removed(String),
}

#[derive(Debug, Default)]
struct Data {
    cache: Vec<u8>,
    medium: Vec<u8>,
    /// Sectors whose cache has not been synced, and the same as a set.
    dirty: Vec<u32>,
    is_dirty: Vec<u64>,
    /// Sectors that a failed sync took for clean although the medium lacks them.
    forgotten: Vec<u32>,
    /// Bytes counted as used.
    charged: u64,
}

impl SimDisk {
    /// An empty directory; `seed` decides whatever is left to chance before the first crash.
    pub fn new(seed: u64) -> SimDisk {
        let inner = Inner {
            random: SplitMix(seed),
            files: Vec::new(),
            pool: Vec::new(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            facts: Vec::new(),
            capacity: u64::MAX,
            used: 0,
            life: 0,
            faults: DiskFaults::default(),
            counts: DiskCounts::default(),
            calls: 0,
            stop_at_call: None,
            lose_write: None,
            stopped: false,
        };
        SimDisk { inner: Arc::new(Mutex::new(inner)), life: 0 }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic elsewhere leaves bytes, not broken invariants of this module.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the room of the disk, in bytes, used ones included. Smaller than what is used: no space is left.
    pub fn set_capacity(&self, bytes: u64) {
        self.lock().capacity = bytes;
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        self.lock().used
    }

    /// Sets how often calls fail.
    pub fn set_faults(&self, faults: DiskFaults) {
        self.lock().faults = faults;
    }

    /// How often each call was made since the disk is there.
    pub fn counts(&self) -> DiskCounts {
        self.lock().counts
    }

    /// Calls that change something, made since the disk is there: the crash points.
    pub fn calls(&self) -> u64 {
        self.lock().calls
    }

    /// Lets call number `call` (counted as by [`SimDisk::calls`], from 1) take effect in part or not at all, and every
    /// later one fail, until [`SimDisk::crash`].
    pub fn stop_at_call(&self, call: u64) {
        self.lock().stop_at_call = Some(call);
    }

    /// Loses write number `write` (counted as by [`SimDisk::counts`], from 1) and reports success.
    pub fn lose_write(&self, write: u64) {
        self.lock().lose_write = Some(write);
    }

    /// Whether the call of [`SimDisk::stop_at_call`] has been made.
    pub fn has_stopped(&self) -> bool {
        self.lock().stopped
    }

    /// Ends the running system: all other handles are dead, this one sees what the next start finds. Without
    /// `power_loss` only the process ends and the cache stays; with it, `seed` draws what the medium has kept of the
    /// unsynced. Costs as much as there is unsynced.
    pub fn crash(&mut self, power_loss: bool, seed: u64) {
        let mut inner = self.lock();
        inner.life += 1;
        inner.stop_at_call = None;
        inner.stopped = false;
        inner.random = SplitMix(seed);
        if power_loss {
            inner.lose_power();
        }
        let life = inner.life;
        drop(inner);
        self.life = life;
    }

    /// Flips bit `bit` (0 to 7) of the byte at `offset` of a file, on the medium and in the cache.
    ///
    /// # Panics
    ///
    /// There is no such file or byte.
    pub fn flip_bit(&self, name: &str, offset: usize, bit: u8) {
        let mut inner = self.lock();
        let index = inner.names[name];
        let data = inner.data(index).expect("a named file has data");
        data.cache[offset] ^= 1 << bit;
        data.medium[offset] ^= 1 << bit;
    }

    /// Puts a synced file of these contents under `name`, replacing one that is there.
    pub fn set_contents(&self, name: &str, contents: &[u8]) {
        let mut inner = self.lock();
        let index = inner.files.len();
        let data = Data {
            cache: contents.to_vec(),
            medium: contents.to_vec(),
            charged: contents.len() as u64,
            ..Data::default()
        };
        inner.used += data.charged;
        inner.files.push(Some(data));
        if let Some(old) = inner.names.insert(name.to_owned(), index) {
            inner.uncharge(old);
        }
        inner.durable_names.insert(name.to_owned(), index);
        inner.free_unnamed();
    }

    /// All files and their bytes, as the running system sees them.
    pub fn contents(&self) -> BTreeMap<String, Vec<u8>> {
        let inner = self.lock();
        let files = &inner.files;
        inner
            .names
            .iter()
            .map(|(name, index)| (name.clone(), files[*index].as_ref().map_or(Vec::new(), |data| data.cache.clone())))
            .collect()
    }

    /// Runs `call` unless this handle is dead or the disk has stopped. `call` learns whether it is the one at which the
    /// disk stops.
    fn change<T>(&self, call: impl FnOnce(&mut Inner, bool) -> io::Result<T>) -> io::Result<T> {
        let mut inner = self.lock();
        if inner.life != self.life {
            return Err(io::Error::other("this handle did not survive the crash"));
        }
        inner.count(call)
    }

    fn look<T>(&self, call: impl FnOnce(&Inner) -> io::Result<T>) -> io::Result<T> {
        let inner = self.lock();
        if inner.life != self.life || inner.stopped {
            return Err(stopped());
        }
        call(&inner)
    }
}

impl Vfs for SimDisk {
    type File = SimFile;

    fn list(&self) -> io::Result<Vec<String>> {
        self.look(|inner| Ok(inner.names.keys().cloned().collect()))
    }

    fn create_new(&self, name: &str) -> io::Result<SimFile> {
        let index = self.change(|inner, stops| {
            if inner.names.contains_key(name) {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            if stops {
                return Err(stopped());
            }
            let index = inner.files.len();
            inner.files.push(Some(Data::default()));
            inner.names.insert(name.to_owned(), index);
            inner.facts.push(Fact::Created(name.to_owned(), index));
            Ok(index)
        })?;
        Ok(SimFile { inner: Arc::clone(&self.inner), life: self.life, index })
    }

    fn open(&self, name: &str, _access: Access) -> io::Result<SimFile> {
        let index = self.look(|inner| inner.names.get(name).copied().ok_or(io::ErrorKind::NotFound.into()))?;
        Ok(SimFile { inner: Arc::clone(&self.inner), life: self.life, index })
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.change(|inner, stops| {
            let index = *inner.names.get(from).ok_or(io::ErrorKind::NotFound)?;
            if stops && inner.random.chance(1, 2) {
                return Err(stopped());
            }
            inner.names.remove(from);
            if let Some(old) = inner.names.insert(to.to_owned(), index) {
                inner.uncharge(old);
            }
            inner.facts.push(Fact::Renamed(from.to_owned(), to.to_owned(), index));
            if stops { Err(stopped()) } else { Ok(()) }
        })
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.change(|inner, stops| {
            if stops && inner.random.chance(1, 2) {
                return Err(stopped());
            }
            let index = inner.names.remove(name).ok_or(io::ErrorKind::NotFound)?;
            inner.uncharge(index);
            inner.facts.push(Fact::Removed(name.to_owned()));
            if stops { Err(stopped()) } else { Ok(()) }
        })
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.change(|inner, stops| {
            inner.counts.syncs += 1;
            if stops {
                return Err(stopped());
            }
            for fact in std::mem::take(&mut inner.facts) {
                fact.apply(&mut inner.durable_names);
            }
            inner.free_unnamed();
            Ok(())
        })
    }

    fn display(&self, name: &str) -> String {
        name.to_owned()
    }
}

impl SimFile {
    fn change<T>(&self, call: impl FnOnce(&mut Inner, bool) -> io::Result<T>) -> io::Result<T> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.life != self.life {
            return Err(io::Error::other("this file did not survive the crash"));
        }
        inner.count(call)
    }

    fn look<T>(&self, call: impl FnOnce(&Data) -> T) -> io::Result<T> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.life != self.life || inner.stopped {
            return Err(stopped());
        }
        inner.data(self.index).map(|data| call(data))
    }
}

impl VfsFile for SimFile {
    fn len(&self) -> io::Result<u64> {
        self.look(|data| data.cache.len() as u64)
    }

    fn allocate(&self, bytes: u64) -> io::Result<()> {
        self.change(|inner, stops| {
            inner.counts.allocations += 1;
            let rate = inner.faults.allocate_errors_per_million;
            if inner.random.chance(u64::from(rate), 1_000_000) {
                return Err(io::Error::from_raw_os_error(ENOSPC));
            }
            if stops {
                return Err(stopped());
            }
            inner.charge(self.index, bytes)?;
            let length = usize::try_from(bytes).expect("a simulated file fits memory");
            let mut cache = inner.pool.pop().unwrap_or_default();
            cache.resize(length, 0);
            inner.data(self.index)?.cache = cache;
            Ok(())
        })
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.change(|inner, stops| {
            inner.counts.writes += 1;
            let faults = inner.faults;
            let start = usize::try_from(offset).expect("a simulated file fits memory");
            let lost = inner.random.chance(u64::from(faults.lost_writes_per_million), 1_000_000);
            if lost || inner.lose_write == Some(inner.counts.writes) {
                return if stops { Err(stopped()) } else { Ok(()) };
            }
            let fails = inner.random.chance(u64::from(faults.write_errors_per_million), 1_000_000);
            let mut part = data;
            if stops || fails {
                // A killed or failing write has handed over some pages.
                let sectors = data.len().div_ceil(SECTOR_BYTES) as u64;
                let kept = inner.random.below(sectors + 1) as usize * SECTOR_BYTES;
                part = &data[..data.len().min(kept.saturating_sub(start % SECTOR_BYTES))];
            }
            inner.charge(self.index, (start + part.len()) as u64)?;
            inner.data(self.index)?.write(start, part);
            if inner.random.chance(1, 16) {
                inner.write_back_early(self.index)?;
            }
            if stops {
                Err(stopped())
            } else if fails {
                Err(io::Error::from_raw_os_error(EIO))
            } else {
                Ok(())
            }
        })
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.look(|data| {
            let start = usize::try_from(offset).map_or(data.cache.len(), |start| start.min(data.cache.len()));
            let length = buffer.len().min(data.cache.len() - start);
            buffer[..length].copy_from_slice(&data.cache[start..start + length]);
            length
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        self.change(|inner, stops| {
            inner.counts.syncs += 1;
            let rate = inner.faults.sync_errors_per_million;
            let fails = inner.random.chance(u64::from(rate), 1_000_000);
            if !stops && !fails {
                inner.data(self.index)?.sync();
                return Ok(());
            }
            inner.write_back_early(self.index)?;
            if stops {
                return Err(stopped());
            }
            inner.data(self.index)?.forget_dirty();
            Err(io::Error::from_raw_os_error(EIO))
        })
    }

    fn truncate(&self, bytes: u64) -> io::Result<()> {
        self.change(|inner, stops| {
            if stops {
                return Err(stopped());
            }
            let length = usize::try_from(bytes).expect("a simulated file fits memory");
            let data = inner.data(self.index)?;
            data.cache.resize(length, 0);
            let released = data.charged.saturating_sub(bytes);
            data.charged -= released;
            inner.used -= released;
            Ok(())
        })
    }

    fn drop_cache(&self) -> io::Result<()> {
        self.change(|inner, stops| {
            if stops {
                return Err(stopped());
            }
            inner.data(self.index)?.reread_forgotten();
            Ok(())
        })
    }
}

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

fn stopped() -> io::Error {
    io::Error::other("the machine has stopped")
}

impl Fact {
    fn apply(&self, names: &mut BTreeMap<String, usize>) {
        match self {
            Fact::Created(name, index) => {
                names.insert(name.clone(), *index);
            }
            Fact::Renamed(from, to, index) => {
                if names.get(from) == Some(index) {
                    names.remove(from);
                }
                names.insert(to.clone(), *index);
            }
            Fact::Removed(name) => {
                names.remove(name);
            }
        }
    }
}

impl Inner {
    /// Counts a call that changes something and runs it, with whether the disk stops at it.
    fn count<T>(&mut self, call: impl FnOnce(&mut Inner, bool) -> io::Result<T>) -> io::Result<T> {
        if self.stopped {
            return Err(stopped());
        }
        self.calls += 1;
        let stops = self.stop_at_call == Some(self.calls);
        self.stopped = stops;
        call(self, stops)
    }

    fn data(&mut self, index: usize) -> io::Result<&mut Data> {
        self.files[index].as_mut().ok_or_else(|| io::Error::other("the file was removed for good"))
    }

    /// Counts a file as `bytes` bytes long at least.
    fn charge(&mut self, index: usize, bytes: u64) -> io::Result<()> {
        let more = bytes.saturating_sub(self.data(index)?.charged);
        if more > 0 && self.used.saturating_add(more) > self.capacity {
            return Err(io::Error::from_raw_os_error(ENOSPC));
        }
        self.used += more;
        self.data(index)?.charged += more;
        Ok(())
    }

    fn uncharge(&mut self, index: usize) {
        if let Some(data) = &mut self.files[index] {
            self.used -= data.charged;
            data.charged = 0;
        }
    }

    /// Lets some unsynced sectors reach the medium, as a kernel does when it likes; they still count as unsynced.
    fn write_back_early(&mut self, index: usize) -> io::Result<()> {
        for _ in 0..4 {
            let dirty = self.data(index)?.dirty.len() as u64;
            if dirty == 0 {
                break;
            }
            let chosen = self.random.below(dirty) as usize;
            let data = self.data(index)?;
            let sector = data.dirty[chosen];
            data.write_back(sector);
        }
        Ok(())
    }

    fn lose_power(&mut self) {
        let facts = std::mem::take(&mut self.facts);
        let fate = Fate::draw(&mut self.random);
        for fact in &facts {
            if fate.keeps(&mut self.random) {
                fact.apply(&mut self.durable_names);
            }
        }
        self.names = self.durable_names.clone();
        for index in 0..self.files.len() {
            let Some(mut data) = self.files[index].take() else { continue };
            let fate = Fate::draw(&mut self.random);
            let by_page = self.random.chance(1, 2);
            data.lose_power(&mut self.random, &fate, by_page);
            self.files[index] = Some(data);
        }
        self.free_unnamed();
        self.used = 0;
        for index in self.names.values() {
            if let Some(data) = &mut self.files[*index] {
                data.charged = data.cache.len() as u64;
                self.used += data.charged;
            }
        }
    }

    /// Gives back the files that no name leads to, neither here nor on the medium.
    fn free_unnamed(&mut self) {
        let mut named = vec![false; self.files.len()];
        for index in self.names.values().chain(self.durable_names.values()) {
            named[*index] = true;
        }
        for fact in &self.facts {
            if let Fact::Created(_, index) | Fact::Renamed(_, _, index) = fact {
                named[*index] = true;
            }
        }
        for (index, is_named) in named.iter().enumerate() {
            if !is_named && let Some(data) = self.files[index].take() {
                for mut buffer in [data.cache, data.medium] {
                    buffer.clear();
                    if self.pool.len() < 16 && buffer.capacity() > 0 {
                        self.pool.push(buffer);
                    }
                }
            }
        }
    }
}

/// How a power loss treats the unsynced parts of one file, or the unsynced names.
enum Fate {
    AllKept,
    AllLost,
    Mixed { kept_of_8: u64 },
}

impl Fate {
    fn draw(random: &mut SplitMix) -> Fate {
        match random.below(8) {
            0 => Fate::AllKept,
            1 => Fate::AllLost,
            _ => Fate::Mixed { kept_of_8: 1 + random.below(7) },
        }
    }

    fn keeps(&self, random: &mut SplitMix) -> bool {
        match self {
            Fate::AllKept => true,
            Fate::AllLost => false,
            Fate::Mixed { kept_of_8 } => random.chance(*kept_of_8, 8),
        }
    }
}

impl Data {
    fn write(&mut self, start: usize, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        let end = start + data.len();
        if end > self.cache.len() {
            self.cache.resize(end, 0);
        }
        self.cache[start..end].copy_from_slice(data);
        for sector in start / SECTOR_BYTES..=(end - 1) / SECTOR_BYTES {
            let (word, bit) = (sector / 64, 1 << (sector % 64));
            if word >= self.is_dirty.len() {
                self.is_dirty.resize(word + 1, 0);
            }
            if self.is_dirty[word] & bit == 0 {
                self.is_dirty[word] |= bit;
                self.dirty.push(u32::try_from(sector).expect("a simulated file fits memory"));
            }
        }
    }

    /// Brings one sector of the cache to the medium.
    fn write_back(&mut self, sector: u32) {
        let start = sector as usize * SECTOR_BYTES;
        let end = self.cache.len().min(start + SECTOR_BYTES);
        if start >= end {
            return;
        }
        if self.medium.len() < end {
            self.medium.resize(end, 0);
        }
        self.medium[start..end].copy_from_slice(&self.cache[start..end]);
    }

    fn take_dirty(&mut self) -> Vec<u32> {
        for sector in &self.dirty {
            self.is_dirty[*sector as usize / 64] = 0;
        }
        std::mem::take(&mut self.dirty)
    }

    fn sync(&mut self) {
        let mut dirty = self.take_dirty();
        for sector in &dirty {
            self.write_back(*sector);
        }
        self.medium.resize(self.cache.len(), 0);
        dirty.clear();
        self.dirty = dirty;
    }

    fn forget_dirty(&mut self) {
        let dirty = self.take_dirty();
        self.forgotten.extend(dirty);
    }

    /// Takes one sector of the medium for the cache.
    fn reread(&mut self, sector: u32) {
        let start = sector as usize * SECTOR_BYTES;
        let end = self.cache.len().min(start + SECTOR_BYTES);
        if start >= end {
            return;
        }
        let stored = self.medium.len().clamp(start, end);
        if stored > start {
            self.cache[start..stored].copy_from_slice(&self.medium[start..stored]);
        }
        self.cache[stored..end].fill(0);
    }

    fn reread_forgotten(&mut self) {
        for sector in std::mem::take(&mut self.forgotten) {
            if self.is_dirty[sector as usize / 64] & (1 << (sector % 64)) == 0 {
                self.reread(sector);
            }
        }
    }

    fn lose_power(&mut self, random: &mut SplitMix, fate: &Fate, by_page: bool) {
        self.reread_forgotten();
        let mut dirty = self.take_dirty();
        dirty.sort_unstable();
        let length = if fate.keeps(random) { self.cache.len() } else { self.medium.len() };
        let mut page = None;
        let mut keep = false;
        for sector in dirty {
            let here = if by_page { sector as usize / PAGE_SECTORS } else { sector as usize };
            if page != Some(here) {
                page = Some(here);
                keep = fate.keeps(random);
            }
            if keep {
                self.write_back(sector);
            }
            // What the next start reads.
            self.reread(sector);
        }
        // A kept sector lies within the file, whatever else was lost of its length.
        let length = length.max(self.medium.len().min(self.cache.len()));
        self.medium.resize(length, 0);
        self.cache.truncate(length);
        // A cut that was lost: what it had cut off is back.
        self.cache.extend_from_slice(&self.medium[self.cache.len()..]);
    }
}

/// A generator whose sequence is the same in every version.
#[derive(Debug)]
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is not 0.
    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    fn chance(&mut self, of: u64, all: u64) -> bool {
        of > 0 && self.below(all) < of
    }
}
