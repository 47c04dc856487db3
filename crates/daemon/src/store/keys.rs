//! Keys of the HTTP API: what is stored of them. The secret is not.

use database_core::{Answer, DbError, Script, Sql, Tx, Value, Verdict};

static INSERT: Sql = Sql::new(
    "key.insert",
    "INSERT INTO api_key (id, name, hash, scopes, created_at, created_by, expires_at) \
     VALUES ($1, $2, $3, $4, clock_timestamp(), $5, clock_timestamp() + $6::float8 * interval '1 millisecond') \
     ON CONFLICT DO NOTHING",
    "INSERT INTO api_key (id, name, hash, scopes, created_at, created_by, expires_at) \
     VALUES ($1, $2, $3, $4, CAST(unixepoch('subsec') * 1000 AS INTEGER), $5, \
     CAST(unixepoch('subsec') * 1000 AS INTEGER) + $6) ON CONFLICT DO NOTHING",
);

static LIST: Sql = Sql::new(
    "key.list",
    "SELECT id, name, hash, scopes, created_by, floor(extract(epoch FROM created_at) * 1000)::bigint, \
     floor(extract(epoch FROM expires_at) * 1000)::bigint, floor(extract(epoch FROM revoked_at) * 1000)::bigint, \
     floor(extract(epoch FROM used_at) * 1000)::bigint, uses, expires_at < clock_timestamp() \
     FROM api_key ORDER BY created_at, id LIMIT $1",
    "SELECT id, name, hash, scopes, created_by, created_at, expires_at, revoked_at, used_at, uses, \
     expires_at < CAST(unixepoch('subsec') * 1000 AS INTEGER) FROM api_key ORDER BY created_at, id LIMIT $1",
);

static REVOKE: Sql = Sql::new(
    "key.revoke",
    "UPDATE api_key SET revoked_at = clock_timestamp(), revoked_by = $2 \
     WHERE (id = $1 OR name = $1) AND revoked_at IS NULL RETURNING id",
    "UPDATE api_key SET revoked_at = CAST(unixepoch('subsec') * 1000 AS INTEGER), revoked_by = $2 \
     WHERE (id = $1 OR name = $1) AND revoked_at IS NULL RETURNING id",
);

static USED: Sql = Sql::new(
    "key.used",
    "UPDATE api_key SET uses = api_key.uses + u.uses, \
     used_at = GREATEST(api_key.used_at, clock_timestamp() - u.ago_ms * interval '1 millisecond') \
     FROM jsonb_to_recordset($1::jsonb) AS u (id text, uses bigint, ago_ms float8) WHERE api_key.id = u.id",
    "UPDATE api_key SET uses = api_key.uses + (u.value ->> 'uses'), \
     used_at = max(COALESCE(api_key.used_at, 0), CAST(unixepoch('subsec') * 1000 AS INTEGER) - (u.value ->> 'ago_ms')) \
     FROM json_each($1) AS u WHERE api_key.id = u.value ->> 'id'",
);

/// The statements, for the suite that prepares them all.
pub const ALL: &[&Sql] = &[&INSERT, &LIST, &REVOKE, &USED];

/// Keys a database may hold, revoked ones included: all are read at once.
pub const KEYS_MAX: i64 = 10_000;

/// What is stored of a key that is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewKey {
    /// Public part of the key.
    pub id: String,
    /// Name for people, unique among keys that are not revoked.
    pub name: String,
    /// Hash of the secret part.
    pub hash: Vec<u8>,
    /// Names of scopes, separated by commas.
    pub scopes: String,
    /// Who made it.
    pub created_by: String,
    /// Life in ms; `None`: until it is revoked.
    pub life_ms: Option<i64>,
}

/// A stored key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredKey {
    /// As in [`NewKey`].
    pub id: String,
    /// As in [`NewKey`].
    pub name: String,
    /// As in [`NewKey`].
    pub hash: Vec<u8>,
    /// As in [`NewKey`].
    pub scopes: String,
    /// As in [`NewKey`].
    pub created_by: String,
    /// Ms since 1970, by the database's clock, like the following.
    pub created_at_ms: i64,
    /// When it ends by itself.
    pub expires_at_ms: Option<i64>,
    /// When it was revoked.
    pub revoked_at_ms: Option<i64>,
    /// When it was last used, as of the last beat that wrote it.
    pub used_at_ms: Option<i64>,
    /// How often it was used.
    pub uses: i64,
    /// Whether it has expired.
    pub is_expired: bool,
}

/// Stores a key. False: there is one of that name, or of that id, already. `caches` tells all members.
#[must_use]
pub fn insert(key: NewKey, caches: Option<(&'static Sql, &'static str)>) -> Script<bool> {
    Script::transaction(move |mut tx| async move {
        let values = vec![
            key.id.into(),
            key.name.into(),
            Value::Bytes(key.hash),
            key.scopes.into(),
            key.created_by.into(),
            key.life_ms.into(),
        ];
        if tx.execute(&INSERT, values).await? == 0 {
            return Ok(Verdict::RollBack(false));
        }
        tell(&mut tx, caches).await?;
        Ok(Verdict::Commit(true))
    })
}

async fn tell(tx: &mut Tx, caches: Option<(&'static Sql, &'static str)>) -> Result<(), DbError> {
    if let Some((sql, name)) = caches {
        tx.execute(sql, [name.into()]).await?;
    }
    Ok(())
}

/// All keys, the oldest first.
#[must_use]
pub fn list() -> Script<Vec<StoredKey>> {
    Script::statement(&LIST, [KEYS_MAX.into()], read)
}

/// Revokes the key of that id or name, and gives its id; `None`: there is none that is not revoked. `caches` tells all
/// members.
#[must_use]
pub fn revoke(id_or_name: &str, by: &str, caches: Option<(&'static Sql, &'static str)>) -> Script<Option<String>> {
    let values = [id_or_name.into(), by.into()];
    Script::transaction(move |mut tx| async move {
        let Some(row) = tx.query_opt(&REVOKE, values).await? else { return Ok(Verdict::RollBack(None)) };
        tell(&mut tx, caches).await?;
        Ok(Verdict::Commit(Some(row.text(0)?.to_owned())))
    })
}

/// How often keys were used since the last time this was written.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct KeyUse {
    /// Which key.
    pub id: String,
    /// How often.
    pub uses: u64,
    /// How long ago the last time was.
    pub ago_ms: u64,
}

/// Adds uses to what is stored.
#[must_use]
pub fn used(uses: &[KeyUse]) -> Script<()> {
    let uses = serde_json::to_string(uses).unwrap_or_else(|_| "[]".to_owned()); // texts and numbers: cannot fail
    Script::statement(&USED, [uses.into()], |_| Ok(()))
}

fn read(answer: Answer) -> Result<Vec<StoredKey>, DbError> {
    let read = |row: &database_core::Row| {
        Ok(StoredKey {
            id: row.text(0)?.to_owned(),
            name: row.text(1)?.to_owned(),
            hash: row.bytes(2)?.to_owned(),
            scopes: row.text(3)?.to_owned(),
            created_by: row.text(4)?.to_owned(),
            created_at_ms: row.int(5)?,
            expires_at_ms: row.int_or_null(6)?,
            revoked_at_ms: row.int_or_null(7)?,
            used_at_ms: row.int_or_null(8)?,
            uses: row.int(9)?,
            is_expired: row.values().get(10) != Some(&Value::Null) && row.bool(10)?,
        })
    };
    answer.rows.iter().map(read).collect()
}
