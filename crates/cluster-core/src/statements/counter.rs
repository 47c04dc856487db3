//! Counters in windows of `minute`, `hour` or `day`, cut in UTC by the database's clock.

use database_core::Sql;

/// All of them.
pub const ALL: &[&Sql] = &[&ADD, &READ, &PRUNE];

/// Adds unless the sum would exceed the limit. Takes name, window, what is added, and the limit or NULL; gives the sum and the
/// ms until the window ends. No row: used up.
pub static ADD: Sql = Sql::new(
    "counter.add",
    "INSERT INTO counter AS c (name, window_start, window_end, n) \
     SELECT $1, w, w + ('1 ' || $2::text)::interval, $3 FROM date_trunc($2::text, clock_timestamp(), 'UTC') AS w \
     WHERE $4::bigint IS NULL OR $3::bigint <= $4 \
     ON CONFLICT (name, window_start) DO UPDATE SET n = c.n + excluded.n \
     WHERE $4::bigint IS NULL OR c.n + excluded.n <= $4 \
     RETURNING n, floor(extract(epoch FROM window_end - clock_timestamp()) * 1000)::bigint",
    "INSERT INTO counter AS c (name, window_start, window_end, n) \
     SELECT $1, at - at % size, at - at % size + size, $3 FROM (SELECT CAST(unixepoch('subsec') * 1000 AS INTEGER) AS at, \
     CASE $2 WHEN 'minute' THEN 60000 WHEN 'hour' THEN 3600000 WHEN 'day' THEN 86400000 END AS size) \
     WHERE $4 IS NULL OR $3 <= $4 \
     ON CONFLICT (name, window_start) DO UPDATE SET n = c.n + excluded.n WHERE $4 IS NULL OR c.n + excluded.n <= $4 \
     RETURNING n, window_end - CAST(unixepoch('subsec') * 1000 AS INTEGER)",
);

/// Takes name and window; gives the sum (0 if nothing was added) and the ms until the window ends.
pub static READ: Sql = Sql::new(
    "counter.read",
    "SELECT COALESCE((SELECT n FROM counter WHERE name = $1 AND window_start = w), 0), \
     floor(extract(epoch FROM w + ('1 ' || $2::text)::interval - clock_timestamp()) * 1000)::bigint \
     FROM date_trunc($2::text, clock_timestamp(), 'UTC') AS w",
    "SELECT COALESCE((SELECT n FROM counter WHERE name = $1 AND window_start = at - at % size), 0), \
     at - at % size + size - at FROM (SELECT CAST(unixepoch('subsec') * 1000 AS INTEGER) AS at, \
     CASE $2 WHEN 'minute' THEN 60000 WHEN 'hour' THEN 3600000 WHEN 'day' THEN 86400000 END AS size)",
);

/// Deletes windows that ended long ago. Takes how long in ms, and how many at most.
pub static PRUNE: Sql = Sql::new(
    "counter.prune",
    "DELETE FROM counter WHERE (name, window_start) IN (SELECT name, window_start FROM counter \
     WHERE window_end < clock_timestamp() - $1 * interval '1 millisecond' ORDER BY window_end LIMIT $2) \
     AND window_end < clock_timestamp() - $1 * interval '1 millisecond'",
    "DELETE FROM counter WHERE (name, window_start) IN (SELECT name, window_start FROM counter \
     WHERE window_end < CAST(unixepoch('subsec') * 1000 AS INTEGER) - $1 ORDER BY window_end LIMIT $2)",
);
