"""`make bench`: run every benchmark and print its table."""

from benchmarks import cold_start, startup, throughput

for benchmark in (startup, cold_start, throughput):
    print(benchmark.__doc__.strip())
    print()
    benchmark.main()
    print()
