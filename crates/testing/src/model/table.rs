//! Rows sorted by key in one piece of memory: as plain as a list, and quick to scan, which the model does all the time.

use std::ops::Index;

/// Values by key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table<K, V> {
    rows: Vec<(K, V)>,
}

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Table { rows: Vec::new() }
    }
}

impl<K: Ord + Copy, V> Table<K, V> {
    fn place(&self, key: K) -> Result<usize, usize> {
        match self.rows.last() {
            Some((last, _)) if *last < key => Err(self.rows.len()),
            _ => self.rows.binary_search_by_key(&key, |(key, _)| *key),
        }
    }

    /// Number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The value of `key`.
    #[must_use]
    pub fn get(&self, key: K) -> Option<&V> {
        self.place(key).ok().map(|place| &self.rows[place].1)
    }

    /// The value of `key`, to change it.
    pub fn get_mut(&mut self, key: K) -> Option<&mut V> {
        self.place(key).ok().map(|place| &mut self.rows[place].1)
    }

    /// Whether `key` has a value.
    #[must_use]
    pub fn contains(&self, key: K) -> bool {
        self.place(key).is_ok()
    }

    /// Sets the value of `key` and returns the one before.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.place(key) {
            Ok(place) => Some(std::mem::replace(&mut self.rows[place].1, value)),
            Err(place) => {
                self.rows.insert(place, (key, value));
                None
            }
        }
    }

    /// Takes `key` out.
    pub fn remove(&mut self, key: K) -> Option<V> {
        self.place(key).ok().map(|place| self.rows.remove(place).1)
    }

    /// Keeps the rows that `keep` wants.
    pub fn retain(&mut self, mut keep: impl FnMut(K, &V) -> bool) {
        self.rows.retain(|(key, value)| keep(*key, value));
    }

    /// All rows by rising key.
    pub fn iter(&self) -> impl Iterator<Item = (K, &V)> {
        self.rows.iter().map(|(key, value)| (*key, value))
    }

    /// All keys, rising.
    pub fn keys(&self) -> impl Iterator<Item = K> {
        self.rows.iter().map(|(key, _)| *key)
    }

    /// All values by rising key.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.rows.iter().map(|(_, value)| value)
    }

    /// All values by rising key, to change them.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.rows.iter_mut().map(|(_, value)| value)
    }
}

impl<K: Ord + Copy, V> Index<K> for Table<K, V> {
    type Output = V;

    fn index(&self, key: K) -> &V {
        self.get(key).expect("a row of this key")
    }
}

#[cfg(test)]
mod tests {
    use super::Table;

    #[test]
    fn rows_stay_sorted_and_unique() {
        let mut table = Table::default();
        for key in [5, 1, 9, 5, 3] {
            table.insert(key, key * 10);
        }
        assert_eq!(table.insert(1, 11), Some(10));
        assert_eq!(table.remove(9), Some(90));
        assert_eq!(table.remove(9), None);
        assert_eq!(table.iter().map(|(key, value)| (key, *value)).collect::<Vec<_>>(), [(1, 11), (3, 30), (5, 50)]);
        assert!(table.contains(3) && !table.contains(4));
    }
}
