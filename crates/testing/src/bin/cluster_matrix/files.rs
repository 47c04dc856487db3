//! The SQLite file and its only member.

use std::path::Path;
use std::time::{Duration, Instant};

use database::{Database, schema as steps, sqlite};
use database_core::{Script, Verdict};
use testing::demo_work::history::{Entry, Left, read};
use testing::demo_work::schema::{ADD, MIGRATIONS};

use crate::Outcome;
use crate::crew::{CALM, CLEAN, CRASH, Crew, Place, RULES, ensure, told};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// Opens the file as its member; nobody else may be.
async fn open(path: &Path) -> Result<Database, String> {
    let file = sqlite::Sqlite::open(&sqlite::Settings::new(path, "cluster_matrix"));
    file.map(Database::Sqlite).map_err(|error| error.to_string())
}

async fn close(database: &Database) {
    if let Database::Sqlite(file) = database {
        file.close().await;
    }
}

/// Makes the tables, and work that is due within some time.
fn prepare(path: &Path, count: i64, within: Duration) -> Result<(), String> {
    runtime().block_on(async {
        let database = open(path).await?;
        steps::migrate(&database, MIGRATIONS, "cluster_matrix").await.map_err(|error| error.to_string())?;
        let ms = i64::try_from(within.as_millis()).unwrap_or(0);
        let add = Script::transaction(move |mut tx| async move {
            for n in 0..count {
                let at = usize::try_from(n % 10).unwrap_or(0);
                let kinds = ["plain", "plain", "lane", "plain", "permit", "run", "lane", "plain", "permit", "run"];
                let keys = ["", "", "west", "", "small", "", "east", "", "shared", "shared"];
                let values =
                    [n.into(), kinds[at].into(), keys[at].into(), (n * ms / count).into(), (3 + n * 7 % 30).into()];
                tx.execute(&ADD, values).await?;
            }
            Ok(Verdict::Commit(()))
        });
        database.run_once(add).await.map_err(|error| error.to_string())?;
        close(&database).await;
        Ok(())
    })
}

fn look(path: &Path) -> Result<(Vec<Entry>, Left), String> {
    runtime().block_on(async {
        let database = open(path).await?;
        let seen = read(&database).await.map_err(|error| error.to_string());
        close(&database).await;
        seen
    })
}

fn crew() -> Crew {
    Crew::new(Place { arguments: Vec::new(), dsn: String::new() })
}

fn at(path: &Path) -> [String; 2] {
    ["--sqlite".into(), path.to_str().expect("a path of our own").into()]
}

fn registered(crew: &Crew, member: usize) -> Result<(), String> {
    crew.wait("registered member", CALM, |crew| !crew.members[member].identities().is_empty())
}

/// A second member is refused before it reads a row, by any name of the file, and is told who has it.
pub(crate) fn one_member() -> Outcome {
    let mut crew = crew();
    let (path, link) = (crew.folder().join("file.db"), crew.folder().join("link.db"));
    prepare(&path, 60, Duration::from_secs(1))?;
    std::os::unix::fs::symlink(&path, &link).map_err(|error| error.to_string())?;
    crew.spawn_at(&at(&path), &[]);
    registered(&crew, 0)?;
    let holder = format!("process {}", crew.members[0].pid());
    let mut said = String::new();
    for name in [&path, &link] {
        let second = crew.spawn_at(&at(name), &[]);
        let status = second.wait(CLEAN * 10)?;
        let errors = second.errors();
        ensure(!status.success() && errors.contains("is in use by"), || format!("{status}: {errors}"))?;
        ensure(second.identities().is_empty(), || "a second member was registered (GC6)".into())?;
        ensure(errors.contains(&crew.members[0].pid().to_string()), || format!("no {holder} in {errors:?}"))?;
        errors.trim().clone_into(&mut said);
    }
    let counts = finish(crew, &path, 0)?;
    let folder = path.parent().and_then(Path::to_str).unwrap_or_default();
    let said = said.replace(folder, "…");
    Ok(format!("by its name and by a link: {said}; {counts}"))
}

/// The member is killed in the middle of its work, and the next one starts at once.
pub(crate) fn kills() -> Outcome {
    const KILLS: u32 = 8;
    let mut crew = crew();
    let path = crew.folder().join("file.db");
    prepare(&path, 200, Duration::from_secs(3))?;
    let mut slowest = Duration::ZERO;
    for number in 0..KILLS {
        let begin = Instant::now();
        crew.spawn_at(&at(&path), &[]);
        let member = crew.members.len() - 1;
        registered(&crew, member)?;
        slowest = slowest.max(begin.elapsed());
        std::thread::sleep(Duration::from_millis(u64::from(120 + 50 * number)));
        crew.members[member].kill();
    }
    let last = crew.members.len();
    crew.spawn_at(&at(&path), &[]);
    let counts = finish(crew, &path, last)?;
    Ok(format!("{KILLS} kills, registered again within {slowest:.1?}; {counts}"))
}

/// Lets the member `last` do the rest, and judges.
fn finish(mut crew: Crew, path: &Path, mut last: usize) -> Outcome {
    let end = Instant::now() + CRASH * 10;
    loop {
        registered(&crew, last)?;
        // Nobody else can look into the file while it works.
        std::thread::sleep(Duration::from_secs(2));
        crew.stop_all()?;
        let (log, left) = look(path)?;
        if left == Left::default() {
            return crew.judge_log(log, RULES).map(|counts| told(&counts));
        }
        ensure(Instant::now() < end, || format!("not done: {left:?}"))?;
        last = crew.members.len();
        crew.spawn_at(&at(path), &[]);
    }
}
