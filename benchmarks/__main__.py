"""`make bench`: run every benchmark and print its table."""

from benchmarks import cold_start, containers, many, simulate, startup, throughput

for benchmark in (startup, cold_start, containers, throughput, many, simulate):
    print(benchmark.__doc__.strip())
    print()
    benchmark.main()
    print()
