"""Tests of functions, revisions, bundles and profiles in the store."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from registry.errors import Conflict, UnknownFunction, UnknownRevision
from registry.model.functions import Function, Scaling
from registry.model.profiles import Profile
from registry.model.revisions import Revision
from registry.store.database import Connection, Database
from registry.store.functions import Functions, add_revision, put_bundle, put_profile, save_function
from registry.store.records import decode_record, encode_record
from tests.support import stored
from tests.support.nouns import (
    EMPTY,
    bundle,
    function,
    prepared,
    profile,
    revision,
    server_profile,
    server_revision,
    sha256,
)


@pytest.fixture
def functions(database: Database) -> Functions:
    """Repository over an empty store."""
    return Functions(database, profiles_max=2)


async def deploy(functions: Functions, name: str = "digits") -> tuple[Function, Revision]:
    return await functions.deploy(function(name, 0), revision(name, 0), bundle(), profile())


async def test_a_deploy_is_stored_completely(functions: Functions) -> None:
    """Function, revision, bundle and profile are loaded as they were stored."""
    stored, first = await deploy(functions)

    (loaded,) = await functions.load_all()

    assert (stored.revision, first.number) == (1, 1)
    assert (loaded.function, loaded.revision, loaded.profile) == (stored, first, profile())
    assert await functions.load_bundles() == {first.bundle: bundle()}
    assert await functions.find_profile(first.bundle, "onnx", "cpu") == profile()


async def test_a_deploy_that_fails_changes_nothing(functions: Functions) -> None:
    """If the traffic cannot move, bundle, profile and revision number stay unused."""
    with pytest.raises(UnknownRevision, match="no revision 7"):
        await functions.deploy(function("digits", 0), revision(number=7), bundle(), profile())

    assert await functions.load_all() == []
    assert await functions.referenced_blobs() == set()
    assert await functions.find_profile(bundle().digest, "onnx", "cpu") is None
    assert (await deploy(functions))[1].number == 1


async def test_traffic_moves_to_a_stored_revision(functions: Functions) -> None:
    """A revision stored earlier keeps its number when it gets the traffic."""
    await deploy(functions)
    warm = await stored.add_revision(functions, revision(number=0))

    first, second = await functions.deploy(function("digits", 0), warm, bundle(), None)

    assert (warm, 2, 2) == (second, second.number, first.revision)


async def test_mismatched_revisions_and_bundles_are_refused(functions: Functions) -> None:
    """A revision of another function or with another bundle is not deployed."""
    with pytest.raises(Conflict, match="default/b@0 is no revision of default/a"):
        await functions.deploy(function("a", 0), revision("b", 0), bundle(), None)
    with pytest.raises(Conflict, match="expected bundle"):
        await functions.deploy(function(), revision(number=0), bundle(other=b"x"), None)


async def test_a_revision_needs_its_bundle(functions: Functions) -> None:
    """A revision with an unknown bundle is refused."""
    with pytest.raises(Conflict, match="FOREIGN KEY"):
        await stored.add_revision(functions, revision())


async def test_a_function_needs_its_revision(functions: Functions) -> None:
    """A function whose revision does not exist is refused."""
    with pytest.raises(UnknownRevision, match="no revision 1"):
        await functions.save_function(function())


async def test_settings_make_no_revision(functions: Functions) -> None:
    """Saving a function changes only its settings."""
    stored, first = await deploy(functions)
    changed = replace(stored, scaling=Scaling(1, 8, 5.0), labels={"team": "vision"})

    await functions.save_function(changed)

    (loaded,) = await functions.load_all()
    assert (loaded.function, loaded.revision) == (changed, first)


async def test_numbers_survive_removal(functions: Functions) -> None:
    """A function deployed again after its removal continues its revision numbers."""
    await deploy(functions)
    await functions.remove_function("digits")

    assert await functions.load_all() == []
    assert (await deploy(functions))[1].number == 2
    with pytest.raises(UnknownFunction):
        await functions.remove_function("other")


async def test_namespaces_are_separate(functions: Functions) -> None:
    """The same name in two namespaces is two functions with separate numbers."""
    await deploy(functions)
    await functions.deploy(
        function("digits", 0, namespace="team"),
        revision(number=0, namespace="team"),
        bundle(),
        None,
    )

    await functions.remove_function("digits", "team")

    assert [one.revision.key for one in await functions.load_all()] == ["default/digits@1"]


async def test_old_revisions_are_trimmed(functions: Functions) -> None:
    """The newest revisions stay, up to the limit; the current and the previous one always stay."""
    for _ in range(5):
        await deploy(functions)
    await functions.save_function(function("digits", 3))

    assert await functions.trim_revisions("digits", 3) == (1, 4)
    assert await functions.trim_revisions("digits", 3) == ()
    assert await functions.trim_revisions("other", 2) == ()
    assert [one.revision.number for one in await functions.load_all()] == [2, 3, 5]
    assert await functions.trim_revisions("digits", 0) == (5,)
    assert [one.revision.number for one in await functions.load_all()] == [2, 3]


async def test_a_revision_without_a_function_is_not_loaded(functions: Functions) -> None:
    """A revision whose deploy did not finish is stored, but calls cannot reach it."""
    await stored.put_bundle(functions, bundle())
    await stored.add_revision(functions, revision())

    assert await functions.load_all() == []


async def test_bundles_are_stored_once(functions: Functions) -> None:
    """Storing a bundle twice is allowed; only bundles of revisions are loaded."""
    await stored.put_bundle(functions, bundle())
    await stored.put_bundle(functions, bundle())
    assert await functions.load_bundles() == {}

    await stored.add_revision(functions, revision(number=0))

    assert await functions.load_bundles() == {bundle().digest: bundle()}


async def test_orphans_are_removed(functions: Functions) -> None:
    """Bundles without a revision are removed unless they are to be kept."""
    kept, lost = bundle(a=b"kept"), bundle(a=b"lost")
    await deploy(functions)
    await stored.put_bundle(functions, kept)
    await stored.put_bundle(functions, lost)

    assert await functions.remove_orphans({kept.digest}) == 1
    assert await functions.referenced_blobs() == {sha256(b"model"), sha256(b"kept")}


async def test_the_last_profile_counts(functions: Functions) -> None:
    """A profile replaces only that of the same bundle, engine and device kind."""
    await deploy(functions)
    await functions.put_profile(profile(device_kind="cuda", load_ms=1.0))
    await functions.put_profile(profile(load_ms=2.0))

    (loaded,) = await functions.load_all()

    assert loaded.profile == profile(load_ms=2.0)
    assert await functions.find_profile(bundle().digest, "onnx", "cuda") is not None
    assert await functions.find_profile(bundle().digest, "python", "cpu") is None


async def test_prepared_files_are_kept_in_the_profile(functions: Functions) -> None:
    """Prepared files, plans and times are stored with the profile; a profile of an earlier release
    has none."""
    made = profile(prepared=prepared())
    await deploy(functions)
    await functions.put_profile(made)

    (loaded,) = await functions.load_all()

    assert loaded.profile == made
    assert await functions.find_profile(made.bundle, made.engine, made.device_kind) == made
    earlier = encode_record(profile()).replace(',"prepared":null,"why_not_prepared":""', "")
    assert "prepared" not in earlier
    assert decode_record(earlier, Profile) == profile()


async def test_every_function_keeps_its_profile(functions: Functions) -> None:
    """The limit of profiles never removes one in use, without which a function would not batch."""
    for number in range(4):
        files = bundle(a=bytes([number]))
        await functions.deploy(
            function(f"f{number}", 0),
            revision(f"f{number}", 0, bundle=files.digest),
            files,
            profile(bundle=files.digest),
        )

    await functions.remove_orphans()

    assert all(one.profile is not None for one in await functions.load_all())


async def test_a_load_takes_a_fixed_number_of_queries(
    functions: Functions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four statements load everything, whatever the number of functions."""
    asked: list[str] = []
    for way in ("query", "stream"):
        original = getattr(Connection, way)

        def spy(self: Connection, sql: str, *rest: Any, original: Any = original) -> Any:
            if sql.startswith("SELECT"):
                asked.append(sql)
            return original(self, sql, *rest)

        monkeypatch.setattr(Connection, way, spy)

    for number in range(3):
        await deploy(functions, f"f{number}")
        asked.clear()
        assert len(await functions.load_all()) == number + 1
        assert len(await functions.load_bundles()) == 1
        assert len(asked) == 4


async def test_equal_files_of_bundles_are_one_object(functions: Functions) -> None:
    """All bundles in use are loaded with sorted files; a file shared by several exists once in
    memory."""
    used = [bundle(b=b"same", a=bytes([number])) for number in range(3)]
    for number, files in enumerate(used):
        name = f"f{number}"
        await functions.deploy(
            function(name, 0), revision(name, 0, bundle=files.digest), files, None
        )
    await stored.put_bundle(functions, bundle(lost=b"lost"))

    loaded = await functions.load_bundles()

    assert loaded == {files.digest: files for files in used}
    assert len({id(files.files[1]) for files in loaded.values()}) == 1


async def test_profiles_are_bounded(functions: Functions) -> None:
    """Of unused profiles only the newest stay; every profile in use stays."""
    await deploy(functions)
    digests = [bundle(a=bytes([n])).digest for n in range(3)]
    for digest in digests:
        await functions.put_profile(profile(bundle=digest))
    await functions.remove_orphans()

    found = [
        await functions.find_profile(digest, "onnx", "cpu") is not None
        for digest in [bundle().digest, *digests]
    ]

    assert found == [True, False, True, True]


async def test_repository_writes_are_rolled_back_together(database: Database) -> None:
    """If the last write of a transaction fails, none of its writes is stored."""

    async def write_all() -> None:
        async with database.write() as transaction:
            await put_bundle(transaction, bundle())
            assert (await add_revision(transaction, revision())).number == 1
            await put_profile(transaction, profile())
            await save_function(transaction, function(revision=9))

    with pytest.raises(UnknownRevision, match="no revision 9"):
        await write_all()

    for table in ("bundles", "revisions", "profiles", "functions", "revision_numbers"):
        assert await database.read(f"SELECT * FROM {table}") == []


async def test_only_a_traffic_move_is_recorded(database: Database) -> None:
    """A new function and an unchanged revision add no row to the traffic table."""
    async with database.write() as transaction:
        await put_bundle(transaction, bundle())
        await add_revision(transaction, revision())
        await add_revision(transaction, revision())
        for number in (1, 1, 2, 2):
            await save_function(transaction, function(revision=number))

    assert [tuple(row) for row in await database.read("SELECT name, number FROM traffic")] == [
        ("digits", 1)
    ]


async def test_servers_without_files_keep_their_own_profiles(functions: Functions) -> None:
    """Two commands share the empty bundle, which is loaded; each has the profile that it got."""
    stored = []
    for name, command in (("one", ("a", "${PORT}")), ("two", ("b", "${PORT}"))):
        revision = server_revision(name, 0, command=command)
        measured = server_profile(revision, load_ms=float(len(stored)))
        stored.append(measured)
        await functions.deploy(function(name, 0), revision, EMPTY, measured)

    assert [one.profile for one in await functions.load_all()] == stored
    assert await functions.load_bundles() == {EMPTY.digest: EMPTY}


async def test_an_alias_belongs_to_one_function(functions: Functions) -> None:
    """Neither another function's alias nor a function's name can be an alias."""
    digits, _ = await deploy(functions)
    other, _ = await deploy(functions, "other")
    await functions.save_function(replace(digits, aliases=("org/digits", "d")))
    with pytest.raises(Conflict, match="d is an alias of digits"):
        await functions.save_function(replace(other, aliases=("d",)))
    with pytest.raises(Conflict, match="digits is the name of a function"):
        await functions.save_function(replace(other, aliases=("digits",)))
    with pytest.raises(Conflict, match="d is an alias of digits: choose another name"):
        await deploy(functions, "d")

    await functions.save_function(replace(digits, aliases=("org/digits",)))
    await functions.save_function(replace(other, aliases=("d",)))
    loaded = {one.function.name: one.function.aliases for one in await functions.load_all()}
    assert loaded == {"digits": ("org/digits",), "other": ("d",)}


async def test_a_removed_functions_aliases_are_free(functions: Functions) -> None:
    """Another function may take them, or their name."""
    digits, _ = await deploy(functions)
    await functions.save_function(replace(digits, aliases=("d",)))
    await functions.remove_function("digits")
    assert (await deploy(functions, "d"))[0].name == "d"


async def test_a_name_in_the_protocol_belongs_to_one_function(functions: Functions) -> None:
    """Neither another function's name there nor a function's own name can be one."""
    digits, _ = await deploy(functions)
    other, _ = await deploy(functions, "other")
    await functions.save_function(replace(digits, oip_name="Digits"))
    with pytest.raises(Conflict, match="Digits is the name of digits at /v2 already"):
        await functions.save_function(replace(other, oip_name="Digits"))
    with pytest.raises(Conflict, match="digits is the name of a function"):
        await functions.save_function(replace(other, oip_name="digits"))
    await functions.save_function(replace(other, oip_name="free"))
    with pytest.raises(Conflict, match="free is the name of other at /v2: choose another"):
        await deploy(functions, "free")

    loaded = {one.function.name: one.function.oip_name for one in await functions.load_all()}
    assert loaded == {"digits": "Digits", "other": "free"}
    await functions.remove_function("other")
    assert (await deploy(functions, "free"))[0].name == "free"


async def test_a_function_may_be_named_the_same_in_the_protocol(functions: Functions) -> None:
    """A name of its own is no other function's."""
    digits, _ = await deploy(functions)
    for _ in range(2):
        await functions.save_function(replace(digits, oip_name="digits"))


async def test_a_revision_is_added_without_traffic(functions: Functions) -> None:
    """It gets the next number, and neither the traffic nor a rollback's place."""
    await deploy(functions)
    added = await functions.add(revision(number=0, oip_version="7"), bundle(), profile())
    loaded = await functions.load_all()
    assert [one.revision.number for one in loaded] == [1, 2]
    assert {one.function.revision for one in loaded} == {1}
    assert (added.number, loaded[1].revision.oip_version) == (2, "7")
